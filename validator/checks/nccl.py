"""The planned NCCL is the only one on the loader path. All nodes must use the same one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator.observe import Observe
from validator.plan_document import Component, PlanDocument, section
from validator.probes import environments, in_login_shell, packages, shared_libraries

pytestmark = [pytest.mark.planned("nccl"), pytest.mark.beside_live]

_SONAME = "libnccl.so.2"
# Disabled transports (…_DISABLE=1, …_ENABLE=0), a forced slower transport, or a limit of channels.
_SLOWS_NCCL = re.compile(
    r"NCCL_\w+_DISABLE=[^0]\S*|NCCL_(?:NVLS|CUMEM|IB|MNNVL)_ENABLE=0|NCCL_NET=Socket|NCCL_(?:P2P|NET_GDR)_LEVEL=(?:LOC|0)"
    r"|NCCL_MAX_N?CHANNELS=\d+|NCCL_(?:ALGO|PROTO)=\S+|FI_PROVIDER=(?!efa$)\S+",
    re.IGNORECASE,
)


def version(code: int) -> str:
    """The result of ncclGetVersion as a version: 22105 is 2.21.5, and before 2.9 2808 is 2.8.8 (nccl.h)."""
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}" if code >= 10000 else (
        f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    )  # fmt: skip


@pytest.mark.needs("promise")
def test_library_is_the_planned_version(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The NCCL on the loader path reports the planned version, without LD_LIBRARY_PATH."""
    library = shared_libraries.call(host, observe, _SONAME, "ncclGetVersion", "int*")
    planned = section(plan, "nccl", Component)["version"]
    observe.same(version(int(library.value)), planned, f"ncclGetVersion of {library.file}")


@pytest.mark.tier("T0")
def test_only_one_is_on_the_loader_path(host: Any, observe: Observe) -> None:
    """The loader path has exactly one NCCL. With different ones in a job, collectives hang."""
    files = shared_libraries.on_path(host, _SONAME)
    observe(files, "one file")
    if len(files) != 1:
        observe.fail(f"{_SONAME} on the loader path: expected one file, got {', '.join(files) or 'none'}")


def test_library_can_be_opened(host: Any, observe: Observe) -> None:
    """A program opens NCCL, with the symbol versions that it needs. A library that merely exists may be unusable."""
    shared_libraries.check_opened(host, observe, [_SONAME])


def test_no_login_shell_puts_another_before_it(host: Any, observe: Observe) -> None:
    """No login shell has another NCCL in LD_LIBRARY_PATH or LD_PRELOAD, which precede the loader path."""
    shown = host.run(in_login_shell('printf "::%s" "$LD_LIBRARY_PATH" "$LD_PRELOAD"')).stdout
    folders, preloaded = shown.split("::")[-2:]
    libraries = [name for name in preloaded.split() if "libnccl" in name]
    names = [f"{name}/{_SONAME}" for name in folders.split(":") if name.startswith("/")]
    if names:
        libraries += host.run(f"ls -d {' '.join(['%s'] * len(names))}", *names).stdout.split()
    observe.nothing(libraries, "NCCL in the environment of a login shell")


def test_no_setting_disables_a_transport(host: Any, observe: Observe) -> None:
    """No setting of the machine disables a transport of NCCL between GPUs or nodes. NCCL would work, but slowly.

    Source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    lines = host.run("cat /etc/nccl.conf").stdout.splitlines()
    settings = [("/etc/nccl.conf", line.strip()) for line in lines] + environments(host)
    slowing = [f"{setting} ({source})" for source, setting in settings if _SLOWS_NCCL.fullmatch(setting)]
    observe.nothing(slowing, "settings that disable a transport of NCCL")


_PLUGIN = re.compile(r"NCCL_(?P<kind>NET|TUNER|PROFILER)_PLUGIN=(?P<name>\S+)", re.IGNORECASE)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_no_setting_of_a_build_is_left(host: Any, observe: Observe) -> None:
    """/etc/nccl.conf has no setting: no role writes one, and NCCL of every program reads the file."""
    lines = [line.strip() for line in host.run("cat /etc/nccl.conf").stdout.splitlines()]
    observe.nothing([line for line in lines if line and not line.startswith("#")], "settings in /etc/nccl.conf")


def test_plugins_resolve(host: Any, observe: Observe) -> None:
    """Every plug-in that a setting of the machine names can be found. Without it NCCL uses sockets, or aborts."""
    lines = host.run("cat /etc/nccl.conf").stdout.splitlines()
    settings = [("/etc/nccl.conf", line.strip()) for line in lines] + environments(host)
    missing = []
    for source, setting in settings:
        match = _PLUGIN.fullmatch(setting)
        if match and match["name"].lower() != "none" and not _is_there(host, match["kind"].lower(), match["name"]):
            missing.append(f"{setting} ({source})")
    observe.nothing(missing, "plug-ins of NCCL that cannot be found")


def _is_there(host: Any, kind: str, name: str) -> bool:
    """A path, a file name, or what stands for libnccl-net-NAME.so."""
    if name.startswith("/"):
        return bool(host.run("test -e %s", name).rc == 0)
    return any(shared_libraries.on_path(host, file) for file in (name, f"libnccl-{kind}-{name}.so", f"lib{name}.so"))


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installed package has exactly the planned version, including the CUDA version it was built for."""
    packages.check_installed(host, plan, "nccl", observe)


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The packages are held, so a system upgrade does not change NCCL."""
    packages.check_held(host, plan, "nccl", observe)
