"""The planned aws-ofi-nccl is the only plugin on the loader path, and its libraries are found."""

from __future__ import annotations

from typing import Any

import pytest

from validator.observe import Observe
from validator.plan_document import Component, PlanDocument, section
from validator.probes import shared_libraries

pytestmark = [pytest.mark.planned("ofi_nccl"), pytest.mark.beside_live]

# Names that NCCL loads. The plugin has installed the second beside the first since 1.17.0: two libraries of one build
# (its src/Makefile.am, ENABLE_NCCL_NET_LIBRARY), before that a link.
SONAMES = ("libnccl-net.so", "libnccl-net-ofi.so")
_BANNER = "NET/OFI Initializing aws-ofi-nccl "


def on_path(host: Any) -> list[str]:
    """Plugin files on the loader path, the one that NCCL loads first."""
    files = [path for soname in SONAMES for path in shared_libraries.on_path(host, soname)]
    return list(dict.fromkeys(files))


def version_of(host: Any, path: str) -> str:
    """The version in the message that the plugin logs when NCCL loads it; "" if the file has no such message."""
    shown = str(host.run("grep -a -o -m 1 %s %s", f"{_BANNER}[0-9][0-9.]*[0-9]", path).stdout)
    return shown.partition("\n")[0].removeprefix(_BANNER)


def check_plugin(host: Any, planned: str, observe: Observe) -> None:
    """Fails unless exactly one plugin is on the loader path, in one folder, and has the planned version."""
    __tracebackhide__ = True
    files = on_path(host)
    observe(files, planned)
    if not files:
        observe.fail(f"no {SONAMES[0]} is on the loader path: NCCL would use TCP instead of EFA without a message")
    versions = {path: version_of(host, path) for path in files}
    observe(versions, planned)
    plugins = {(path.rpartition("/")[0], version) for path, version in versions.items()}
    if len(plugins) > 1:
        observe.fail(f"expected one plugin on the loader path, got {len(plugins)}; load order is undefined: {versions}")
    if set(versions.values()) != {planned}:
        observe.fail(f"{files[0]}: expected aws-ofi-nccl {planned}, got {versions[files[0]] or 'no version'}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_plugin_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The plugin on the loader path is the planned version, and there is no second one."""
    check_plugin(host, section(plan, "ofi_nccl", Component)["version"], observe)


@pytest.mark.tier("T0")
def test_plugin_finds_its_libraries(host: Any, observe: Observe) -> None:
    """The loader finds every library, symbol and symbol version of the plugin. Otherwise NCCL ignores it silently."""
    files = on_path(host)
    if not files:
        observe.fail(f"no {SONAMES[0]} is on the loader path")
    missing = {path: unresolved for path in files if (unresolved := shared_libraries.unresolved(host, path))}
    observe(missing, {})
    if missing:
        wrong = [f"{path}: the loader does not find {', '.join(names)}" for path, names in missing.items()]
        observe.fail("; ".join(wrong))


def test_plugin_can_be_opened(host: Any, observe: Observe) -> None:
    """A program opens the plugin as NCCL does, with its symbol versions. Otherwise NCCL uses TCP silently."""
    files = on_path(host)
    if not files:
        observe.fail(f"no {SONAMES[0]} is on the loader path")
    shared_libraries.check_opened(host, observe, files)
