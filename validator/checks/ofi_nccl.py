"""NCCL finds the planned aws-ofi-nccl, that one alone, and all that it needs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from validator import loader
from validator.observe import Observe, output

pytestmark = pytest.mark.planned("ofi_nccl")

# What NCCL asks the loader for; the second is the name that newer releases install beside the first.
SONAMES = ("libnccl-net.so", "libnccl-net-ofi.so")
_BANNER = "NET/OFI Initializing aws-ofi-nccl "


def on_path(host: Any) -> list[str]:
    """Files of plugins that the loader finds, the one that NCCL takes first."""
    files = [path for soname in SONAMES for path in loader.on_path(host, soname)]
    return list(dict.fromkeys(files))


def version_of(host: Any, path: str) -> str:
    """The version in the line that the plugin logs when NCCL loads it; "" where the file has no such line."""
    shown = str(host.run("grep -a -o -m 1 %s %s", f"{_BANNER}[0-9][0-9.]*[0-9]", path).stdout)
    return shown.partition("\n")[0].removeprefix(_BANNER)


def check_plugin(host: Any, planned: str, observe: Observe) -> None:
    """Fails unless the loader finds exactly one plugin and that one says the planned version."""
    __tracebackhide__ = True
    files = on_path(host)
    observe(files, planned)
    if not files:
        observe.fail(f"no {SONAMES[0]} is on the loader path: NCCL would speak TCP instead of EFA, and say nothing")
    found = {path: version_of(host, path) for path in files}
    observe(found, planned)
    if len(found) > 1:
        observe.fail(f"{len(found)} plugins are on the loader path, and which one NCCL takes is chance: {found}")
    if set(found.values()) != {planned}:
        observe.fail(f"{files[0]} is aws-ofi-nccl {found[files[0]] or 'of no version'}, expected {planned}")


@pytest.mark.tier("T0")
def test_plugin_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """The plugin that the loader gives NCCL is the planned version, and there is no second one."""
    check_plugin(host, plan["ofi_nccl"]["version"], observe)


@pytest.mark.tier("T0")
def test_plugin_finds_its_libraries(host: Any, observe: Observe) -> None:
    """The loader finds all that the plugin is linked with: without its libfabric, NCCL would drop it silently."""
    files = on_path(host)
    if not files:
        observe.fail(f"no {SONAMES[0]} is on the loader path")
    # The environment of a login shell might find what a service does not.
    shown = output(host, "env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin ldd %s", files[0])
    lost = re.findall(r"^\s*(\S+) => not found$", shown, re.MULTILINE)
    observe(shown.split("\n"), [])
    if lost:
        observe.fail(f"{files[0]} needs {', '.join(lost)}, which the loader does not find")
