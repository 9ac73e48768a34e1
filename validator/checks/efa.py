"""The planned EFA software is installed in the planned mode, and every adapter of the machine is usable."""

from __future__ import annotations

import re
from collections.abc import Container
from dataclasses import dataclass
from typing import Any

import pytest

from validator.checks import ofi_nccl
from validator.observe import Observe, output, unproven
from validator.plan import planned_instance_type
from validator.plan_document import Efa, NvidiaDriver, PlanDocument, section
from validator.probes import MachineUnderTest, base_driver, hardware, kernel_modules, packages, rdma, shared_libraries

pytestmark = [pytest.mark.planned("efa"), pytest.mark.beside_live]

RECORD = "/opt/amazon/efa_installed_packages"
_PEERMEM, _PEERMEM_PACKAGE = "efa_nv_peermem", "efa-nv-peermem"
# Instance types whose adapters reach GPU memory (EC2 user guide, EFA, GPUDirect RDMA; read 2026-11-25).
_GPUDIRECT = re.compile(r"p[4-9]")
# Directly, or through efa_nv_peermem (amzn-drivers, efa_p2p.c and efa_nvmem_v1.c).
_NVIDIA_PROVIDERS = ("NVIDIA", "NVIDIA peermem")
# Of the deb and of the rpm (EC2 user guide, EFA and NCCL, step 7: lib on Ubuntu, lib64 on Amazon Linux and RHEL).
_LIBFABRIC = {"debian": "/opt/amazon/efa/lib/libfabric.so.1", "redhat": "/opt/amazon/efa/lib64/libfabric.so.1"}
_FI_INFO = "/opt/amazon/efa/bin/fi_info"


@dataclass(frozen=True)
class Record:
    """The installer's record of itself: its version and the file names of its packages."""

    version: str
    packages: tuple[str, ...]

    @property
    def mode(self) -> str:
        return "full" if any(name.startswith("libfabric") for name in self.packages) else "minimal"

    @property
    def driver(self) -> str:
        """Version of the driver package and of its module; "" if none is recorded."""
        matches = [re.match(r"efa[-_](\d+(?:\.\d+)+)", name) for name in self.packages]
        return next((match[1] for match in matches if match), "")


def read_record(text: str) -> Record:
    version = re.search(r"^# EFA installer version: *(\S+)", text, re.MULTILINE)
    rows = [line.split() for line in text.splitlines() if not line.startswith("#")]
    return Record(version[1] if version else "", tuple(name for row in rows for name in row))


def _record(host: Any, observe: Observe) -> Record:
    shown = host.run("cat %s", RECORD)
    if shown.rc != 0:
        observe.fail(f"EFA is not installed: no {RECORD}")
    return read_record(shown.stdout)


def _remaining(host: Any, plan: PlanDocument, observe: Observe) -> Record:
    """The record without the packages that the plan removes after the installation."""
    record, unwanted = _record(host, observe), section(plan, "efa", Efa).get("unwanted", [])
    removed = tuple(f"{name}{separator}" for name in unwanted for separator in "_-")
    return Record(record.version, tuple(name for name in record.packages if not name.startswith(removed)))


def _installed(host: Any, record: Record, family: str) -> dict[str, str]:
    """`package recorded-version` to installed version, for each package of the record."""
    if family == "debian":
        recorded = {row[0]: row[1] for row in (name.split("_") for name in record.packages) if len(row) > 1}
    else:
        recorded = {row[0]: f"{row[1]}-{row[2].rpartition('.')[0]}" for row in map(_parts, record.packages)}
    installed = packages.installed(host, recorded, family)
    return {f"{name} {recorded[name]}": version for name, version in installed.items()}


def _parts(name: str) -> list[str]:
    return name.rsplit("-", 2) if name.count("-") > 1 else [name, "", ""]


def is_version(module: str, planned: str) -> bool:
    """Whether a module is the planned version. One built with GPUDirect RDMA has the suffix g."""
    return module in (planned, f"{planned}g")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_installer_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The EFA installer that ran is the planned version. Its packages were tested together."""
    observe.same(_record(host, observe).version, section(plan, "efa", Efa)["version"], f"EFA installer ({RECORD})")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_parts_are_those_of_the_mode(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """libfabric and Open MPI are installed in mode full, and are not in mode minimal."""
    planned = section(plan, "efa", Efa)
    if "mode" not in planned:
        unproven(f"the plan has no mode: EFA is the base AMI's ({planned.get('provided_by')})")
    record = _record(host, observe)
    library = host.run("test -e %s", _LIBFABRIC[plan["os"]["family"]]).rc == 0
    observe({"recorded": record.mode, "libfabric": library}, planned["mode"])
    if record.mode != planned["mode"] or library != (planned["mode"] == "full"):
        observe.fail(
            f"expected mode {planned['mode']}, got a {record.mode} installation ({RECORD}),"
            f" libfabric {'installed' if library else 'not installed'}"
        )


@pytest.mark.needs("observed")
@pytest.mark.tier("T0")
def test_recorded_packages_are_installed(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """Every package that the installer recorded is installed in that version. Nothing has replaced it."""
    installed = _installed(host, _remaining(host, plan, observe), plan["os"]["family"])
    observe(installed)
    changed = [f"{name}: {version}" for name, version in installed.items() if version != name.partition(" ")[2]]
    if changed or not installed:
        observe.fail(f"installed version differs from the record: {'; '.join(changed) or 'no package is recorded'}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_packages_are_held(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The installer's packages are held, so a system upgrade does not replace its rdma-core."""
    if base := section(plan, "efa", Efa).get("provided_by"):
        unproven(f"EFA is the base AMI's ({base}), which manages its holds")
    family = plan["os"]["family"]
    recorded = _installed(host, _remaining(host, plan, observe), family)
    installed = {name.partition(" ")[0]: version for name, version in recorded.items() if version != packages.MISSING}
    not_held = sorted(set(installed) - packages.held(host, installed, family))
    observe(sorted(set(installed) - set(not_held)), sorted(installed))
    if not_held or not installed:
        observe.fail(f"not held: {', '.join(not_held) or 'no package is installed'}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_module_on_disk_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The module on disk of each installed kernel is the installer's, so the next boot has its adapters."""
    planned = _module_version(host, plan, observe)
    kernel_modules.check_on_disk(host, "efa", planned, observe, lambda version: is_version(version, planned))


@pytest.mark.needs("observed")
@pytest.mark.planned("nvidia_driver")
@pytest.mark.tier("T0")
def test_peer_memory_module_fits_the_driver(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """efa_nv_peermem was built against the driver on disk, for each kernel. Otherwise the kernel does not load it."""
    if not any(name.startswith(_PEERMEM_PACKAGE) for name in _remaining(host, plan, observe).packages):
        unproven(f"the installer has recorded no {_PEERMEM_PACKAGE}")
    if base_driver.keeps_drivers(host, plan):
        unproven(f"{_PEERMEM} is the base AMI's, built once beside several drivers: see test_adapters_reach_gpu_memory")
    driver = section(plan, "nvidia_driver", NvidiaDriver).get("module", "nvidia")
    kernels = kernel_modules.symbols(host, _PEERMEM, driver)
    silent = [kernel for kernel, found in kernels.items() if not found[driver].exports]
    faults = {
        kernel: kernel_modules.misfit(found[_PEERMEM], found[driver], "nvidia_p2p_")
        for kernel, found in kernels.items()
    }
    observe(faults, "built against the driver's nvidia_p2p symbols")
    if silent or not kernels:
        unproven(f"no symbols of {driver} are known for {', '.join(silent) or 'any kernel'}: see nvidia_driver")
    wrong = [f"{kernel}: {fault}" for kernel, fault in faults.items() if fault]
    if wrong:
        observe.fail(f"{_PEERMEM}: {'; '.join(wrong)}")


def _module_version(host: Any, plan: PlanDocument, observe: Observe) -> str:
    """The planned version of the module; if no source states it, that of the recorded package."""
    return str(section(plan, "efa", Efa).get("contents", {}).get("kernel_module") or _record(host, observe).driver)


@pytest.mark.needs("promise")
def test_libfabric_is_the_planned_one(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """fi_info runs with the libfabric of the planned installer."""
    efa = section(plan, "efa", Efa)
    if efa.get("mode", "full") != "full":
        unproven("a minimal installation has no libfabric")
    shown = output(host, f"{_FI_INFO} --version")
    match = re.search(r"^libfabric: (\d+(?:\.\d+)+)", shown, re.MULTILINE)
    planned = efa.get("contents", {}).get("libfabric")
    observe(match[1] if match else shown.strip(), planned)
    if not match:
        observe.fail(f"{_FI_INFO} --version shows no libfabric version: {shown.strip()!r}")
    if planned is None:
        unproven(f"libfabric is {match[1]}; no source states that of installer {efa['version']}")
    if match[1] != planned:
        observe.fail(f"libfabric: expected {planned} (EFA installer {efa['version']}), got {match[1]}")


@pytest.mark.needs("promise")
@pytest.mark.tier("T0")
def test_bundled_plugin_is_the_installer_s(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """The plugin on the loader path is the installer's, in the version of this installer."""
    efa = section(plan, "efa", Efa)
    if "ofi_nccl" in plan or efa.get("mode", "full") != "full" or "ofi_nccl" not in efa.get("contents", {}):
        unproven("this installation has no plugin of its own")
    ofi_nccl.check_plugin(host, efa["contents"]["ofi_nccl"], observe)


@pytest.mark.needs("observed")
def test_libraries_can_be_opened(host: Any, plan: PlanDocument, observe: Observe) -> None:
    """A program opens libfabric and the installer's plugin, with the versions of symbols that they need."""
    efa = section(plan, "efa", Efa)
    if efa.get("mode", "full") != "full":
        unproven("a minimal installation has no libfabric")
    bundled = "ofi_nccl" not in plan and "ofi_nccl" in efa.get("contents", {})
    libfabric = _LIBFABRIC[plan["os"]["family"]]
    shared_libraries.check_opened(host, observe, [libfabric, *(ofi_nccl.on_path(host) if bundled else [])])


@pytest.mark.needs("promise")
@pytest.mark.survives
def test_loaded_module_is_the_planned_one(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """The planned module is loaded on instance types with EFA adapters."""
    promised = planned_instance_type(plan, machine.instance_type)["efa_interfaces"]
    if not promised:
        unproven(f"{machine.instance_type} has no EFA")
    planned = _module_version(host, plan, observe)
    shown = host.run("cat /sys/module/efa/version")
    loaded = shown.stdout.strip() if shown.rc == 0 else "not loaded"
    observe(loaded, planned)
    if not is_version(loaded, planned):
        observe.fail(f"module efa: expected {planned}, got {loaded}; {machine.instance_type} has {promised} adapters")


@pytest.mark.needs("observed")
@pytest.mark.planned("nvidia_driver")
@pytest.mark.tier("T3")
@pytest.mark.survives
def test_adapters_reach_gpu_memory(host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe) -> None:
    """Each adapter has NVIDIA's driver as its provider of GPU memory. Otherwise NCCL copies through the host."""
    promised = planned_instance_type(plan, machine.instance_type)
    if not promised["efa_interfaces"] or not promised["gpu_count"]:
        unproven(f"{machine.instance_type} has no EFA adapter beside a GPU")
    hardware.require_board(host, plan)
    providers = rdma.providers(host, [device.name for device in rdma.efa_devices(host)])
    observe(providers, "NVIDIA")
    if not providers:
        unproven("no EFA device: see test_every_promised_adapter_is_there")
    wrong = [f"{name}: {provider}" for name, provider in providers.items() if provider not in _NVIDIA_PROVIDERS]
    if wrong and not _GPUDIRECT.match(machine.instance_type):
        unproven(f"device/p2p: {'; '.join(wrong)}; AWS documents GPUDirect RDMA for P4d and later P types alone")
    if wrong:
        observe.fail(f"device/p2p: expected NVIDIA, got {'; '.join(wrong)}")


@pytest.mark.needs("observed")
@pytest.mark.survives
def test_every_promised_adapter_is_there(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, observe: Observe
) -> None:
    """Device nodes, RDMA devices and libfabric show every adapter of the instance type, and the same ones."""
    promised = planned_instance_type(plan, machine.instance_type)["efa_interfaces"]
    devices = rdma.devices(host)
    others = {device.name: device.driver for device in devices if not device.is_efa}
    adapters = {"/sys/class/infiniband": [device.name for device in devices if device.is_efa]}
    adapters |= _rdma_devices(host, plan, others)
    nodes = sum(device.node != "" for device in devices if device.is_efa)
    observe(adapters | {"/dev/infiniband/uverbs*": nodes} | ({"not EFA": others} if others else {}), promised)
    wrong = [f"{len(names)} in {source}" for source, names in adapters.items() if len(names) != promised]
    wrong += [f"{nodes} in /dev/infiniband/uverbs*"] if nodes != promised else []
    if wrong:
        observe.fail(
            f"EFA adapters of {machine.instance_type}: expected {promised}, got {'; '.join(wrong)}"
            " (adapters are attached at launch, InterfaceType efa)"
        )
    if len({tuple(names) for names in adapters.values()}) > 1:
        observe.fail(f"sources show different adapters: {adapters}")


def _rdma_devices(host: Any, plan: PlanDocument, others: Container[str]) -> dict[str, list[str]]:
    """Adapters that rdma-core's tools show, without the other RDMA devices, and in mode full libfabric's."""
    shown = host.run("ibv_devices").stdout.splitlines()
    names = [line.split()[0] for line in shown[2:] if line.strip()]
    adapters = {"ibv_devices": sorted(name for name in names if name not in others)}
    if section(plan, "efa", Efa).get("mode", "full") == "full":
        listed = host.run(f"{_FI_INFO} -p efa").stdout
        domains = re.findall(r"^\s*domain: (\S+?)-(?:rdm|dgrm)$", listed, re.MULTILINE)
        adapters["fi_info -p efa"] = sorted(set(domains))
    return adapters
