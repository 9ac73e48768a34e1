"""The machine is the one that its instance type promises, beyond its GPUs: their links, its NVSwitches, its EFA."""

from __future__ import annotations

from typing import Any

import pytest

from validator import oracle
from validator.machine import MachineUnderTest
from validator.observe import Observe, unproven
from validator.oracle import Golden, Hardware

pytestmark = [pytest.mark.planned("nvidia_driver"), pytest.mark.tier("T3")]


@pytest.fixture(scope="module")
def hardware(host: Any) -> Hardware:
    """What the machine has. UNPROVEN where it does not say, because the driver checks do."""

    def run(command: str) -> tuple[int, str]:
        done = host.run(command, pure=True)
        return done.rc, done.stdout

    try:
        return oracle.see(run)
    except oracle.Unseen as reason:
        unproven(f"{reason}: see nvidia_driver::test_every_promised_gpu_is_there")


def _promised(plan: Any, machine: MachineUnderTest) -> dict[str, Any]:
    row: dict[str, Any] = plan.instance_type(machine.instance_type).plain()
    return row


@pytest.mark.survives
def test_gpus_are_linked_as_promised(
    hardware: Hardware, plan: Any, machine: MachineUnderTest, golden_file: Golden | None, observe: Observe
) -> None:
    """Every pair of GPUs is linked as on this instance type: a GPU that lost its NVLinks still answers, only slowly."""
    promised = _promised(plan, machine)
    recorded = oracle.applicable(golden_file, simulated=hardware.simulated)
    observe(dict(hardware.links), f"compared with {oracle.basis(recorded)}")
    if len(hardware.gpus) != promised["gpu_count"]:
        unproven("not every GPU is there: see nvidia_driver::test_every_promised_gpu_is_there")
    pairs = promised["gpu_count"] * (promised["gpu_count"] - 1) // 2
    if len(hardware.links) != pairs:
        observe.fail(f"`nvidia-smi topo -m` tells of {len(hardware.links)} pairs of GPUs, expected {pairs}")
    if pairs and not promised["nvswitch"] and recorded is None:
        name = promised["name"]
        unproven(f"no fact and no golden file says how the GPUs of {name} are linked: gpu-ami record would keep it")
    wrong = oracle.link_differences(hardware, promised, recorded)
    if wrong:
        observe.fail(f"{wrong[0]}{f', and {len(wrong) - 1} more pairs' if len(wrong) > 1 else ''}")


def test_nvswitches_are_the_promised_ones(
    hardware: Hardware, plan: Any, machine: MachineUnderTest, golden_file: Golden | None, observe: Observe
) -> None:
    """The NVSwitches stand on the PCI bus where the instance type has them; without them NVLink ends at each GPU."""
    promised = _promised(plan, machine)
    recorded = oracle.applicable(golden_file, simulated=hardware.simulated)
    found = list(hardware.nvswitches)
    observe(found, f"{'some' if promised['nvswitch'] else 'none'}; compared with {oracle.basis(recorded)}")
    if not promised["nvswitch"]:
        if found:
            observe.fail(f"{promised['name']} has no NVSwitch, found {', '.join(found)}")
        return
    if not found and hardware.simulated:
        unproven("simulated hardware has no NVSwitch")
    if not found and promised["gpu"]["architecture"] not in oracle.SWITCHES_ON_PCI:
        unproven(
            f"the NVSwitches of {promised['name']} are no PCI devices of the machine: their links are judged alone"
        )
    if not found:
        observe.fail(f"{promised['name']} has NVSwitches, none is on the PCI bus")
    if recorded is not None and recorded.hardware.nvswitches != hardware.nvswitches:
        was = ", ".join(recorded.hardware.nvswitches) or "none"
        observe.fail(f"NVSwitches at {', '.join(found)}, recorded are {was} ({recorded.name})")


def test_efa_interfaces_are_the_promised_ones(
    hardware: Hardware, plan: Any, machine: MachineUnderTest, golden_file: Golden | None, observe: Observe
) -> None:
    """The machine has the EFA interfaces of its instance type; they are attached at launch, so fewer is no fault of
    the image, but its EFA is then not proven on all of them."""
    promised = _promised(plan, machine)
    most, found = promised["efa_interfaces"], len(hardware.efa_interfaces)
    recorded = oracle.applicable(golden_file, simulated=hardware.simulated)
    observe(list(hardware.efa_interfaces), f"{most}; compared with {oracle.basis(recorded)}")
    if found > most:
        observe.fail(f"{promised['name']} has at most {most} EFA interfaces, found {found}")
    if found < most:
        was = f" (recorded: {len(recorded.hardware.efa_interfaces)})" if recorded is not None else ""
        unproven(f"{found} of {most} EFA interfaces are attached{was}: the launch decides how many")
