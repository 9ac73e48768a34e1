"""Every GPU answers; GPU links, NVSwitches and EFA interfaces are those of the instance type."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

import pytest

from onhost import readings
from validator.observe import Observe, unproven
from validator.plan import planned_instance_type
from validator.plan_document import PlanDocument
from validator.probes import Golden, Gpu, Hardware, MachineUnderTest
from validator.probes import hardware as probe

pytestmark = [pytest.mark.planned("nvidia_driver"), pytest.mark.tier("T3"), pytest.mark.beside_live]


@pytest.fixture(scope="module")
def hardware(host: Any) -> Hardware:
    """The hardware of the machine. UNPROVEN if it cannot be read: the driver checks fail for that."""

    def run(command: str) -> tuple[int, str]:
        done = host.run(command, pure=True)
        return done.rc, done.stdout

    try:
        return probe.see(run)
    except probe.Unseen as reason:
        unproven(f"{reason}: see nvidia_driver::test_every_promised_gpu_is_there")


def _answering(machine: MachineUnderTest) -> list[Gpu]:
    try:
        gpus = machine.gpus
    except ValueError as error:
        unproven(f"{error}: see nvidia_driver::test_every_promised_gpu_is_there")
    return gpus or unproven("nvidia-smi -q -x names no GPU: see nvidia_driver::test_every_promised_gpu_is_there")


@pytest.mark.survives
def test_every_gpu_answers(machine: MachineUnderTest, observe: Observe) -> None:
    """nvidia-smi knows every value that each GPU has, and the driver asks for no reset of it.

    A lost GPU has errors in place of values, and exit status 0. One that waits for its reset may have every value, and
    DCGM calls it healthy (NVIDIA/DCGM#263); no program can use it.
    """
    gpus = _answering(machine)
    asked = {gpu.index: f"the driver asks for: {gpu.asked}" for gpu in gpus if gpu.asked}
    answers = {gpu.index: asked.get(gpu.index, "every value") for gpu in gpus}
    answers.update((gpu.index, readings.shown_unknown(gpu.unknown)) for gpu in gpus if gpu.unknown)
    observe(answers, "every value")
    silent = [f"GPU {gpu.index} ({gpu.pci}): {answers[gpu.index]}" for gpu in gpus if gpu.unknown]
    if silent:
        observe.fail(f"unknown values: {'; '.join(silent)}")
    if asked:
        observe.fail("; ".join(f"GPU {gpu.index} ({gpu.pci}): {asked[gpu.index]}" for gpu in gpus if gpu.asked))


@pytest.mark.needs("observed")
@pytest.mark.survives
def test_gpus_are_linked_as_promised(
    host: Any,
    hardware: Hardware,
    plan: PlanDocument,
    machine: MachineUnderTest,
    golden_file: Golden | None,
    observe: Observe,
) -> None:
    """Every pair of GPUs has the link of this instance type. A GPU without its NVLinks works, but slowly."""
    promised = planned_instance_type(plan, machine.instance_type)
    recorded = probe.applicable(golden_file, simulated=hardware.simulated)
    observe(dict(hardware.links), f"compared with {probe.basis(recorded)}")
    if len(hardware.gpus) != promised["gpu_count"]:
        unproven("not every GPU is present: see nvidia_driver::test_every_promised_gpu_is_there")
    pairs = promised["gpu_count"] * (promised["gpu_count"] - 1) // 2
    if len(hardware.links) != pairs:
        observe.fail(f"`nvidia-smi topo -m`: expected {pairs} pairs of GPUs, got {len(hardware.links)}")
    if pairs and not promised["nvswitch"] and recorded is None:
        name = promised["name"]
        down = readings.inactive_links(host.run("nvidia-smi nvlink -s", pure=True).stdout)
        if down:
            observe.fail(f"NVLinks of {name}: {'; '.join(f'GPU {index}: {what}' for index, what in down.items())}")
        unproven(f"no fact and no golden file has the GPU links of {name}: record one with gpu-ami record")
    differences = probe.link_differences(hardware, promised, recorded)
    if differences:
        more = f", and {len(differences) - 1} more pairs" if len(differences) > 1 else ""
        observe.fail(f"{differences[0]}{more}")


@pytest.mark.needs("observed")
@pytest.mark.survives
def test_nvlink_fabric_is_complete(host: Any, machine: MachineUnderTest, plan: PlanDocument, observe: Observe) -> None:
    """Every GPU is registered in the NVLink fabric, which is healthy. Until then CUDA fails with error 802.

    NVML has no fabric state of GPUs before Hopper: there the fabric manager's log says that the NVSwitches are routed.
    """
    promised = planned_instance_type(plan, machine.instance_type)
    gpus = _answering(machine)
    observe({gpu.index: gpu.fabric or "no state" for gpu in gpus}, "Completed and healthy; before Hopper: routed")
    if not promised["nvswitch"] and not any(gpu.fabric for gpu in gpus):
        return
    shown = host.run(STATE)
    manager = read(shown.stdout) if "fabric_manager" in plan and shown.rc == 0 else None
    last = f"; fabric manager: {manager}" if manager else ""
    faults = [f"GPU {gpu.index} ({gpu.pci}): {', '.join(gpu.fabric_faults)}" for gpu in gpus if gpu.fabric_faults]
    on_the_way = all(gpu.fabric in ("Completed", *ON_THE_WAY) for gpu in gpus)
    if faults and on_the_way and manager and manager.seconds < LIMIT_SECONDS:
        unproven(f"not complete within {manager.seconds:.0f} of {LIMIT_SECONDS:.0f} s: {'; '.join(faults)}{last}")
    silent = [
        f"GPU {gpu.index} ({gpu.pci}): no fabric state"
        for gpu in gpus
        if not gpu.fabric and gpu.architecture in WITH_STATE and promised["nvswitch"]
    ]
    if faults or silent:
        observe.fail(f"NVLink fabric of {promised['name']}: {'; '.join(faults + silent)}{last}")
    if not all(gpu.fabric for gpu in gpus) and "fabric_manager" in plan and not (manager and manager.is_routed):
        observe.fail(f"{LOG}: expected that all NVSwitches are configured since its last start{last}")


@pytest.mark.needs("observed")
def test_nvswitches_are_the_promised_ones(
    hardware: Hardware, plan: PlanDocument, machine: MachineUnderTest, golden_file: Golden | None, observe: Observe
) -> None:
    """The NVSwitches of the instance type are on the PCI bus. Without them the GPUs have no NVLink connection."""
    promised = planned_instance_type(plan, machine.instance_type)
    recorded = probe.applicable(golden_file, simulated=hardware.simulated)
    switches = list(hardware.nvswitches)
    observe(switches, f"{'some' if promised['nvswitch'] else 'none'}; compared with {probe.basis(recorded)}")
    if not promised["nvswitch"]:
        if switches:
            observe.fail(f"NVSwitches of {promised['name']}: expected none, got {', '.join(switches)}")
        return
    if not switches and hardware.simulated:
        unproven("simulated hardware has no NVSwitch")
    if not switches and promised["gpu"]["architecture"] not in probe.SWITCHES_ON_PCI:
        unproven(f"the NVSwitches of {promised['name']} are not PCI devices of the machine: only the links are checked")
    if not switches:
        observe.fail(f"{promised['name']} has NVSwitches, but none is on the PCI bus")
    if recorded is not None and recorded.hardware.nvswitches != hardware.nvswitches:
        expected = ", ".join(recorded.hardware.nvswitches) or "none"
        observe.fail(f"NVSwitches: expected {expected} ({recorded.name}), got {', '.join(switches)}")


@pytest.mark.needs("observed")
def test_efa_interfaces_are_the_promised_ones(
    hardware: Hardware, plan: PlanDocument, machine: MachineUnderTest, golden_file: Golden | None, observe: Observe
) -> None:
    """The machine has the EFA interfaces of its instance type.

    They are attached at launch, so fewer are not a defect of the image, but EFA is then not proven on all of them.
    """
    promised = planned_instance_type(plan, machine.instance_type)
    limit, count = promised["efa_interfaces"], len(hardware.efa_interfaces)
    recorded = probe.applicable(golden_file, simulated=hardware.simulated)
    observe(list(hardware.efa_interfaces), f"{limit}; compared with {probe.basis(recorded)}")
    if count > limit:
        observe.fail(f"EFA interfaces of {promised['name']}: expected at most {limit}, got {count}")
    if count < limit:
        in_golden = f" (recorded: {len(recorded.hardware.efa_interfaces)})" if recorded is not None else ""
        unproven(f"{count} of {limit} EFA interfaces are attached{in_golden}: the launch determines how many")


UNIT = "nvidia-fabricmanager.service"
LOG = "/var/log/fabricmanager.log"
# Prints the uptime, when the unit became active, and the end of the fabric manager's log.
STATE = (
    f"cut -d. -f1 /proc/uptime && systemctl show -p ActiveEnterTimestampMonotonic --value {UNIT}"
    f" && if [ -r {LOG} ]; then tail -n 200 {LOG}; fi"
)
# GPUs are registered within seconds after the NVSwitches are routed; those of gpu-operator#2781 stayed In Progress.
LIMIT_SECONDS = 60.0
ON_THE_WAY = ("In Progress", "Not Started")
WITH_STATE = ("Hopper", "Blackwell")  # NVML, nvmlDeviceGetGpuFabricInfo: for Hopper or newer
_STARTED = re.compile(r"Fabric Manager version .* is running")
_ROUTED = re.compile(r"Successfully configured all the available .*NVSwitches to route")


@dataclass(frozen=True)
class Manager:
    """seconds: since its unit became active, 0 where it is not. log: its lines since its last start."""

    seconds: float
    log: tuple[str, ...]

    @property
    def is_routed(self) -> bool:
        """Whether the log says that the NVSwitches are configured."""
        return any(_ROUTED.search(line) for line in self.log)

    def __str__(self) -> str:
        return f"active for {self.seconds:.0f} s, the last lines of {LOG}: {' | '.join(self.log[-3:]) or 'none'}"


def read(printed: str) -> Manager:
    """What STATE has printed."""
    uptime, active, *lines = [*printed.splitlines(), "", ""][: max(2, len(printed.splitlines()))]
    since = float(uptime or 0) - int(active) / 1e6 if active.isdigit() and int(active) else 0.0
    starts = [number for number, line in enumerate(lines) if _STARTED.search(line)]
    return Manager(max(0.0, since), tuple(lines[starts[-1] :] if starts else lines))
