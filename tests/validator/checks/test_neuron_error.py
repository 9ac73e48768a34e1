"""The way of a Neuron error that a proof injects, once green and once red for each thing that can go wrong on it."""

from __future__ import annotations

import json
import re
import shlex
from typing import Any

import pytest

from gpu_ami.events.reader import parser_module
from tests.validator.checks.conftest import INSTANCE, METADATA, PLAN, FakeMachine, Judge, Judgement
from tests.validator.checks.test_xid import World
from validator.checks import neuron_error
from validator.plan import as_plan

MACHINE = FakeMachine(METADATA | {"instance-type": "inf2.48xlarge"}, first_boot_time=90.0)


class NeuronWorld(World):
    """A host with the event parser of the image. The flags are what is broken."""

    def inject(self, text: str) -> tuple[int, str, str]:
        if self.broken.get("refused"):
            return 3, "start 100.0\n", "Permission denied"
        file, record = shlex.split(shlex.split(text)[2] if text.startswith("sh -c sh") else text)[-5:-3]
        assert (file, record[:3], record[-1]) == ("/dev/kmsg", "<4>", "\n")
        self.line = record[3:-1]
        if self.broken.get("deaf"):
            return 0, "start 100.0\n", ""
        self.raw += [f"[  104.666670] {self.line}"] * self.broken.get("written", 1)
        self.json.append(self.event(self.line))
        return 0, "start 100.0\nseen 100.2\nseen 100.3\n", ""

    def event(self, line: str) -> str:
        """As the parser of the image writes it."""
        fact = parser_module("neuron").parse_neuron(line)
        origin = "kernel" if self.broken.get("believes_drills") else "userland"
        meaning = parser_module("catalogue").Catalogue(policy_path=None).neuron(fact.code)
        event = {
            "kind": "neuron", "code": fact.code, "pci": fact.device, "severity": meaning.severity, "origin": origin,
            "details": fact.details, "rest" if self.broken.get("cut") else "message": fact.message,
        }  # fmt: skip
        document = parser_module("emf").event_document(event, 104_666_670, {"InstanceId": INSTANCE}, 0.1)
        if self.broken.get("counts_drills"):
            document |= {"NeuronEvents": document.pop("DrillEvents")}
            document["_aws"]["CloudWatchMetrics"][0]["Metrics"][0]["Name"] = "NeuronEvents"
        return json.dumps(document | self.broken.get("fields", {}))


def prove(judge: Judge, check: Any, world: NeuronWorld) -> Judgement:
    plan = as_plan({name: section for name, section in PLAN.items() if name != "nvidia_driver"})
    errors = neuron_error.NeuronErrors(world.host, plan, MACHINE, world)  # type: ignore[arg-type]
    return judge(check, {}, errors=errors, machine=MACHINE, host=world.host)


CHECKS = (
    neuron_error.test_drill_arrives_once,
    neuron_error.test_drill_is_labelled,
    neuron_error.test_drill_counts_as_a_drill,
)


@pytest.mark.parametrize("check", CHECKS)
def test_drill_passes(judge: Judge, check: Any) -> None:
    world = NeuronWorld()
    outcome = prove(judge, check, world)
    assert outcome.verdict == "PASS", outcome
    assert (outcome.check.event or {"origin": "userland"})["origin"] == "userland"


def test_hops_are_reported(judge: Judge) -> None:
    outcome = prove(judge, neuron_error.test_drill_arrives_once, NeuronWorld())
    assert {hop.hop: hop.seconds for hop in outcome.check.hops}["kernel → CloudWatch Logs (raw)"] == 10.0


@pytest.mark.parametrize(
    ("check", "broken", "verdict", "message"),
    [
        (0, {"state": "dead"}, "UNPROVEN", "the parser is not running"),
        (0, {"refused": True}, "UNPROVEN", "/dev/kmsg does not accept a Neuron error: Permission denied"),
        (0, {"deaf": True}, "FAIL", "not in /var/log/gpuevent.log within 20 s"),
        (0, {"silent_group": "raw"}, "FAIL", f"did not reach group raw, stream {INSTANCE} within 30 s"),
        (0, {"silent_group": "json"}, "FAIL", f"did not reach group json, stream {INSTANCE} within 30 s"),
        (0, {"written": 2}, "FAIL", "'/var/log/gpuevent.log': 2"),
        (0, {"delivered": 2}, "FAIL", "'raw': 2, 'json': 2"),
        (1, {"believes_drills": True}, "FAIL", "'origin': 'kernel'"),
        (1, {"fields": {"kind": "xid"}}, "FAIL", "'kind': 'xid'"),
        (1, {"fields": {"pci": "neuron7"}}, "FAIL", "'pci': 'neuron7'"),
        (1, {"fields": {"code": "DMA_ERROR"}}, "FAIL", "'code': 'DMA_ERROR'"),
        (1, {"cut": True}, "FAIL", "the event's message does not contain the driver's text: None"),
        (2, {"counts_drills": True}, "FAIL", "expected DrillEvents, got NeuronEvents"),
        (2, {"believes_drills": True}, "FAIL", "expected DrillEvents, got NeuronEvents"),
        (2, {"fields": {"_aws": {}}}, "FAIL", "expected DrillEvents, got []"),
    ],
)
def test_failures(judge: Judge, check: int, broken: dict[str, Any], verdict: str, message: str) -> None:
    outcome = prove(judge, CHECKS[check], NeuronWorld(**broken))
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


def test_one_drill_serves_all_checks(judge: Judge) -> None:
    world = NeuronWorld()
    errors = neuron_error.NeuronErrors(world.host, as_plan(PLAN), MACHINE, world)  # type: ignore[arg-type]
    for check in CHECKS:
        assert judge(check, {}, errors=errors, machine=MACHINE, host=world.host).verdict == "PASS"
    assert len(world.raw) == 1


def test_drill_names_no_error_on_which_others_act(judge: Judge) -> None:
    """Node problem detectors on a machine in service read the same kernel log, and do not look at the facility."""
    world = NeuronWorld()
    prove(judge, neuron_error.test_drill_arrives_once, world)
    known = {row["error"] for row in parser_module("catalogue").rows("neuron.csv", parser_module("catalogue").DATA)}
    assert not known & set(re.findall(r"\w+", world.line)) and "action=" not in world.line
    assert f"instance-id={INSTANCE} " in world.line
