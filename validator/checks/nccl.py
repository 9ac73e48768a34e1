"""The planned NCCL is what a program gets, and there is no other for it to get: nodes must agree on one."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator import loader, packages
from validator.environment import environments, in_login_shell
from validator.observe import Observe

pytestmark = pytest.mark.planned("nccl")

_SONAME = "libnccl.so.2"
# Ways that are switched off (…_DISABLE=1, …_ENABLE=0), a transport below the best one, or channels that are capped.
_TURNS_OFF = re.compile(
    r"NCCL_\w+_DISABLE=[^0]\S*|NCCL_(?:NVLS|CUMEM|IB|MNNVL)_ENABLE=0|NCCL_NET=Socket|NCCL_(?:P2P|NET_GDR)_LEVEL=(?:LOC|0)"
    r"|NCCL_MAX_N?CHANNELS=\d+|NCCL_(?:ALGO|PROTO)=\S+|FI_PROVIDER=(?!efa$)\S+",
    re.IGNORECASE,
)


def version(code: int) -> str:
    """ncclGetVersion in words: 22105 is 2.21.5, and before 2.9 2808 is 2.8.8 (nccl.h: NCCL_VERSION)."""
    return f"{code // 10000}.{code % 10000 // 100}.{code % 100}" if code >= 10000 else (
        f"{code // 1000}.{code % 1000 // 100}.{code % 100}"
    )  # fmt: skip


def test_library_is_the_planned_version(host: Any, plan: Any, observe: Observe) -> None:
    """A program finds the planned NCCL without help, and it is the library itself that says so."""
    found = loader.ask(host, observe, _SONAME, "ncclGetVersion", "int*")
    observe.same(version(int(found.value)), plan["nccl"]["version"], f"ncclGetVersion of {found.file}")


@pytest.mark.tier("T0")
def test_only_one_is_on_the_loader_path(host: Any, observe: Observe) -> None:
    """The loader knows exactly one NCCL: where nodes or programs find different ones, collectives hang."""
    found = loader.on_path(host, _SONAME)
    observe(found, "one file")
    if len(found) != 1:
        observe.fail(f"{_SONAME} on the loader's path: found {', '.join(found) or 'none'}, expected one")


def test_no_login_shell_puts_another_before_it(host: Any, observe: Observe) -> None:
    """No login shell adds another NCCL by LD_LIBRARY_PATH or LD_PRELOAD, which come before the loader's own path."""
    shown = host.run(in_login_shell('printf "::%s" "$LD_LIBRARY_PATH" "$LD_PRELOAD"')).stdout
    folders, preloaded = shown.split("::")[-2:]
    found = [name for name in preloaded.split() if "libnccl" in name]
    names = [f"{name}/{_SONAME}" for name in folders.split(":") if name.startswith("/")]
    if names:
        found += host.run(f"ls -d {' '.join(['%s'] * len(names))}", *names).stdout.split()
    observe.nothing(found, "NCCL that a login shell's environment puts first")


def test_no_setting_turns_off_a_way(host: Any, observe: Observe) -> None:
    """No setting of the machine keeps NCCL from a way between GPUs or nodes: it would work, and slowly.

    Source: https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/env.html
    """
    lines = host.run("cat /etc/nccl.conf").stdout.splitlines()
    settings = [("/etc/nccl.conf", line.strip()) for line in lines] + environments(host)
    found = [f"{setting} ({where})" for where, setting in settings if _TURNS_OFF.fullmatch(setting)]
    observe.nothing(found, "settings that turn off a way of NCCL")


@pytest.mark.tier("T0")
def test_packages_are_the_planned_ones(host: Any, plan: Any, observe: Observe) -> None:
    """The package has exactly the planned version, the CUDA that it is built for included."""
    packages.check_installed(host, plan, "nccl", observe)


@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: Any, observe: Observe) -> None:
    """An upgrade of the system does not move NCCL."""
    packages.check_held(host, plan, "nccl", observe)
