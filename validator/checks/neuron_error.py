"""An error of a Neuron device arrives in CloudWatch Logs once and unchanged, and a drill is labelled as one.

The drill is the runtime's line with the name of no error: node problem detectors read the same kernel log, do not ask
who wrote a line, and replace the instance for the names that they know.
"""

from __future__ import annotations

from typing import Any

import pytest

from validator.checks.event_parser import require_parser
from validator.cloudwatch import CloudWatch
from validator.observe import Observe
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest
from validator.probes.agent import injected_lines

pytestmark = [pytest.mark.live, pytest.mark.planned("neuron"), pytest.mark.survives, pytest.mark.tier("T2")]

_CODE = "GPU_AMI_DRILL"
_DEVICE, _CORE = 0, 0
_NAME = f"neuron{_DEVICE}"
_COUNTS = {"DrillEvents", "NeuronEvents"}  # an event is counted as one of them


class NeuronErrors(injected_lines.InjectedLines):
    """Injects an error of a Neuron device on a host and follows it."""

    what = "a Neuron error"

    def sent(self, machine: MachineUnderTest, observe: Observe) -> injected_lines.Injection:
        """The drill, injected by the first check that asks. The runtime's serial number is its nonce."""
        machine.require_clock()
        require_parser(self.host)
        if self.drill is None:
            nonce = injected_lines.nonce("serial-num")
            self.drill = self.inject_drill(self.line(nonce), nonce, _NAME, observe)
        return self.drill

    def line(self, nonce: str) -> str:
        where = f"instance-id={self.machine.instance_id} hostname=gpu-ami-proof nd-id={_DEVICE} nc-id={_CORE}"
        return f"NEURON_HW_ERR={_CODE} {where} {nonce}"


@pytest.fixture(scope="module")
def errors(
    host: Any, plan: PlanDocument, machine: MachineUnderTest, cloudwatch: CloudWatch, log_group_suffix: str
) -> NeuronErrors:
    """UNPROVEN where a drill would reach production's log groups although the proof has groups of its own."""
    return NeuronErrors.of_proof(host, plan, machine, cloudwatch, log_group_suffix)


@pytest.mark.needs("observed")
def test_drill_arrives_once(errors: NeuronErrors, machine: MachineUnderTest, observe: Observe) -> None:
    """A Neuron error in the kernel log arrives in both logs and both streams exactly once."""
    sent = errors.sent(machine, observe)
    errors.follow(sent, observe)
    errors.require_once(sent, observe)


@pytest.mark.needs("observed")
def test_drill_is_labelled(errors: NeuronErrors, machine: MachineUnderTest, observe: Observe) -> None:
    """The event has the error and the device, and the origin userland, so that a drill raises no alarm."""
    sent = errors.sent(machine, observe)
    errors.wait(errors.raw_group, sent.nonce, observe)
    fields = errors.event(sent, observe)
    expected = {"kind": "neuron", "code": _CODE, "pci": sent.device, "origin": "userland"}
    values = {key: fields.get(key) for key in expected}
    errors.require_fields(fields, values, expected, sent, errors.line(sent.nonce), observe=observe)


@pytest.mark.needs("observed")
def test_drill_counts_as_a_drill(errors: NeuronErrors, machine: MachineUnderTest, observe: Observe) -> None:
    """CloudWatch counts the event in DrillEvents and not in NeuronEvents, which alarms use."""
    fields = errors.event(errors.sent(machine, observe), observe)
    directives = fields.get("_aws", {}).get("CloudWatchMetrics", [])
    names = {metric["Name"] for directive in directives for metric in directive["Metrics"]}
    observe.same(sorted(names & _COUNTS), ["DrillEvents"], "metrics that count the event")
