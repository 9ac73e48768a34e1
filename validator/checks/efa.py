"""The planned EFA software is installed, whole or minimal as planned, and every adapter of the machine can be used."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from validator import modules, packages
from validator.checks import ofi_nccl
from validator.machine import MachineUnderTest
from validator.observe import Observe, output, unproven

pytestmark = pytest.mark.planned("efa")

RECORD = "/opt/amazon/efa_installed_packages"
_FI_INFO = "/opt/amazon/efa/bin/fi_info"
_NODES = "ls -1 /dev/infiniband 2>/dev/null | grep -c '^uverbs[0-9]' || true"


@dataclass(frozen=True)
class Record:
    """What the installer has written down: its version, and the packages by the names of their files."""

    version: str
    packages: tuple[str, ...]

    @property
    def mode(self) -> str:
        return "full" if any(name.startswith("libfabric") for name in self.packages) else "minimal"

    @property
    def driver(self) -> str:
        """Version of the driver's package, which its module has too; "" where none is recorded."""
        found = [re.match(r"efa[-_](\d+(?:\.\d+)+)", name) for name in self.packages]
        return next((match[1] for match in found if match), "")


def read_record(text: str) -> Record:
    version = re.search(r"^# EFA installer version: *(\S+)", text, re.MULTILINE)
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return Record(version[1] if version else "", tuple(name for row in rows for name in row))


def _record(host: Any, observe: Observe) -> Record:
    shown = host.run("cat %s", RECORD)
    if shown.rc != 0:
        observe.fail(f"EFA is not installed: {RECORD} is not there")
    return read_record(shown.stdout)


def _installed(host: Any, record: Record, family: str) -> dict[str, str]:
    """Package → version, of the record, each with the version that is installed."""
    if family == "debian":
        recorded = {row[0]: row[1] for row in (name.split("_") for name in record.packages) if len(row) > 1}
    else:
        recorded = {row[0]: f"{row[1]}-{row[2].rpartition('.')[0]}" for row in map(_parts, record.packages)}
    found = packages.installed(host, recorded, family)
    return {f"{name} {recorded[name]}": version for name, version in found.items()}


def _parts(name: str) -> list[str]:
    return name.rsplit("-", 2) if name.count("-") > 1 else [name, "", ""]


def is_version(found: str, planned: str) -> bool:
    """A module that is built with GPUDirect RDMA says so by a g after its version."""
    return found in (planned, f"{planned}g")


@pytest.mark.tier("T0")
def test_installer_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """The EFA installer that ran is the planned version: what it brought was tested together."""
    observe.same(_record(host, observe).version, plan["efa"]["version"], f"EFA installer ({RECORD})")


@pytest.mark.tier("T0")
def test_parts_are_those_of_the_mode(host: Any, plan: Any, observe: Observe) -> None:
    """libfabric and Open MPI are there with mode full, and are not with mode minimal."""
    if "mode" not in plan["efa"]:
        unproven(f"the plan says no mode: EFA is the base AMI's ({plan['efa'].plain().get('provided_by')})")
    record = _record(host, observe)
    library = host.run("test -e /opt/amazon/efa/lib/libfabric.so.1").rc == 0
    observe({"recorded": record.mode, "libfabric": library}, plan["efa"]["mode"])
    if record.mode != plan["efa"]["mode"] or library != (plan["efa"]["mode"] == "full"):
        observe.fail(
            f"{RECORD} lists a {record.mode} installation, libfabric is {'' if library else 'not '}there;"
            f" planned is {plan['efa']['mode']}"
        )


@pytest.mark.tier("T0")
def test_recorded_packages_are_installed(host: Any, plan: Any, observe: Observe) -> None:
    """Every package that the installer recorded is still there in that version: nothing has exchanged it."""
    found = _installed(host, _record(host, observe), plan["os"]["family"])
    observe(found)
    wrong = [f"{name}: {version}" for name, version in found.items() if version != name.partition(" ")[2]]
    if wrong or not found:
        observe.fail(f"not as recorded: {'; '.join(wrong) or 'no package is recorded'}")


@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: Any, observe: Observe) -> None:
    """An upgrade of the system does not mix its own rdma-core with EFA's: what the installer brought is held."""
    if "provided_by" in plan["efa"]:
        unproven(f"EFA is the base AMI's ({plan['efa']['provided_by']}), which holds what it holds")
    family = plan["os"]["family"]
    found = _installed(host, _record(host, observe), family)
    there = {name.partition(" ")[0]: version for name, version in found.items() if version != packages.MISSING}
    free = sorted(set(there) - packages.held(host, there, family))
    observe(sorted(set(there) - set(free)), sorted(there))
    if free or not there:
        observe.fail(f"not held: {', '.join(free) or 'nothing is installed'}")


@pytest.mark.tier("T0")
def test_module_on_disk_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """For each installed kernel, the module on disk is the installer's, so the next boot has its adapters too."""
    planned = _module_version(host, plan, observe)
    modules.check_on_disk(host, "efa", planned, observe, lambda found: is_version(found, planned))


def _module_version(host: Any, plan: Any, observe: Observe) -> str:
    """The plan's; where no source says which module that installer has, the one of the package that it recorded."""
    return str(plan["efa"].plain().get("contents", {}).get("kernel_module") or _record(host, observe).driver)


def test_libfabric_is_the_planned_one(host: Any, plan: Any, observe: Observe) -> None:
    """fi_info runs, and the libfabric behind it is the one that the planned installer holds."""
    efa = plan["efa"].plain()
    if efa.get("mode", "full") != "full":
        unproven("a minimal installation has no libfabric")
    shown = output(host, f"{_FI_INFO} --version")
    found = re.search(r"^libfabric: (\d+(?:\.\d+)+)", shown, re.MULTILINE)
    planned = efa.get("contents", {}).get("libfabric")
    observe(found[1] if found else shown.strip(), planned)
    if not found:
        observe.fail(f"{_FI_INFO} --version names no libfabric: {shown.strip()!r}")
    if planned is None:
        unproven(f"libfabric is {found[1]}; no source says which one the installer {efa['version']} holds")
    if found[1] != planned:
        observe.fail(f"libfabric is {found[1]}, EFA installer {efa['version']} holds {planned}")


@pytest.mark.tier("T0")
def test_bundled_plugin_is_the_installer_s(host: Any, plan: Any, observe: Observe) -> None:
    """NCCL finds the installer's own plugin on the loader path, in the version that this installer holds."""
    efa = plan["efa"].plain()
    if "ofi_nccl" in plan or efa.get("mode", "full") != "full" or "ofi_nccl" not in efa.get("contents", {}):
        unproven("this installation brings no plugin of its own")
    ofi_nccl.check_plugin(host, efa["contents"]["ofi_nccl"], observe)


@pytest.mark.survives
def test_loaded_module_is_the_planned_one(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """Where the instance type has adapters, the planned module is loaded and drives them."""
    promised = plan.instance_type(machine.instance_type)["efa_interfaces"]
    if not promised:
        unproven(f"{machine.instance_type} has no EFA")
    planned = _module_version(host, plan, observe)
    shown = host.run("cat /sys/module/efa/version")
    found = shown.stdout.strip() if shown.rc == 0 else "not loaded"
    observe(found, planned)
    if not is_version(found, planned):
        observe.fail(f"module efa: {found}, expected {planned}; {machine.instance_type} has {promised} adapters")


@pytest.mark.survives
def test_every_promised_adapter_is_there(host: Any, plan: Any, machine: MachineUnderTest, observe: Observe) -> None:
    """Device nodes, RDMA devices and libfabric show as many adapters as the instance type has, and the same ones."""
    promised = plan.instance_type(machine.instance_type)["efa_interfaces"]
    known = _rdma_devices(host, plan)
    seen = {"/sys/class/infiniband": sorted(host.run("ls -1 /sys/class/infiniband").stdout.split())} | known
    nodes = int(output(host, _NODES).strip() or 0)
    observe(seen | {"/dev/infiniband/uverbs*": nodes}, promised)
    wrong = [f"{len(names)} by {where}" for where, names in seen.items() if len(names) != promised]
    wrong += [f"{nodes} by /dev/infiniband/uverbs*"] if nodes != promised else []
    if wrong:
        observe.fail(
            f"{machine.instance_type} has {promised} EFA adapters, found {'; '.join(wrong)}"
            " (an instance has those that its launch asked for, InterfaceType efa)"
        )
    if len({tuple(names) for names in seen.values()}) > 1:
        observe.fail(f"not the same adapters: {seen}")


def _rdma_devices(host: Any, plan: Any) -> dict[str, list[str]]:
    """What the programs of the installation show: libfabric's with mode full, rdma-core's always."""
    shown = host.run("ibv_devices").stdout.splitlines()
    found = {"ibv_devices": sorted(line.split()[0] for line in shown[2:] if line.strip())}
    if plan["efa"].plain().get("mode", "full") == "full":
        listed = host.run(f"{_FI_INFO} -p efa").stdout
        domains = re.findall(r"^\s*domain: (\S+?)-(?:rdm|dgrm)$", listed, re.MULTILINE)
        found["fi_info -p efa"] = sorted(set(domains))
    return found
