"""Twenty machines in service, three of them broken: exactly those are named, and no refusal of AWS blames a machine."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest

from gpu_ami.cloud import systems_manager
from gpu_ami.cloud.systems_manager import Limits, Selection
from gpu_ami.errors import MachineError
from gpu_ami.fleet import condition, payload
from gpu_ami.fleet.condition import Condition
from tests.aws_requests import Checked
from tests.fleet.service_machines import Fleet
from validator.results import CheckRecord, HostResults, Verdict

ALL = Selection(tags={"fleet": "train"})
CHECKED = [*condition.REQUIRED, "xid::test_drill_is_labelled", "cloudwatch_agent::test_agent_is_active_and_enabled"]


def results(**verdicts: str) -> HostResults:
    """Every check passed, but for those named by their last word."""
    rows = []
    for name in CHECKED:
        verdict = next((value for key, value in verdicts.items() if key in name), "PASS")
        rows.append(
            CheckRecord(
                name, name.split("::")[0], "T2", "", Verdict(verdict), message="" if verdict == "PASS" else "wrong"
            )
        )
    return HostResults("h", tuple(rows))


def conditions(in_service: Fleet) -> list[Condition]:
    found = systems_manager.find(in_service.cloud, ALL)
    limits = Limits("20", "100%", 30)
    return condition.ask(in_service.cloud, payload.bundle(in_service.plan), found, limits, in_service.plan.document)


@pytest.mark.slow
def test_of_twenty_machines_the_three_broken_ones_are_named(in_service: Fleet) -> None:
    all_of_them = [in_service.add(start=number != 3) for number in range(20)]
    silent, behind, other = all_of_them[3], all_of_them[7], all_of_them[11]
    for machine in all_of_them:
        in_service.pretend_attached(machine, "sha256:" + "0" * 64 if machine is other else in_service.plan.digest)
        in_service.heartbeat(machine, 1000 if machine is behind else 5)
    in_service.wait()
    checked: list[str] = []

    def check(one: Condition) -> HostResults:
        checked.append(one.machine.instance_id)
        return results()

    proofs = condition.prove(conditions(in_service), check, 4)
    named = {each.condition.machine.instance_id: each.condition.state for each in proofs if each.verdict != "PASS"}
    assert named == {silent.instance_id: "silent", behind.instance_id: "behind", other.instance_id: "other plan"}
    assert len(checked) == 17 and not set(checked) & set(named)
    by_id = {each.condition.machine.instance_id: each for each in proofs}
    assert by_id[silent.instance_id].verdict == "UNPROVEN" and by_id[behind.instance_id].verdict == "FAIL"
    assert condition.exit_code(proofs) == 1


@pytest.mark.parametrize("code", ["ThrottlingException", "AccessDeniedException"])
def test_what_cloudwatch_does_not_tell_is_unproven(
    in_service: Fleet, code: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    machine = in_service.add()
    in_service.pretend_attached(machine, in_service.plan.digest)
    in_service.wait()
    answer = in_service.cloud.client("logs")

    def refuse(**_: Any) -> Any:
        raise answer.exceptions.ClientError({"Error": {"Code": code, "Message": "no"}}, "GetLogEvents")

    monkeypatch.setattr(answer, "get_log_events", Checked("logs", get_log_events=refuse).get_log_events)
    (one,) = condition.prove(conditions(in_service), None, 1)
    assert (one.verdict, one.condition.state) == ("UNPROVEN", "unproven") and code in one.condition.reason
    assert condition.exit_code([one]) == 4


def ok() -> Condition:
    from gpu_ami.cloud.systems_manager import FleetMachine, Outcome

    return Condition(FleetMachine("i-1", "g5.12xlarge", "running", ping="Online"), Outcome("Success"), "ok")


def raising(_: Condition) -> HostResults:
    raise MachineError("SSH login failed before the deadline")


@pytest.mark.parametrize(
    ("check", "verdict", "reason"),
    [
        (lambda _: results(), "PASS", ""),
        (lambda _: results(drill="FAIL"), "FAIL", "xid::test_drill_is_labelled: wrong"),
        (lambda _: results(drill="UNPROVEN"), "UNPROVEN", "xid::test_drill_is_labelled: wrong"),
        (lambda _: results(agent_is="ERROR"), "UNPROVEN", "cloudwatch_agent::test_agent_is_active_and_enabled: wrong"),
        (lambda _: HostResults("h", results().checks[1:]), "UNPROVEN", f"{CHECKED[0]}: did not run"),
        (raising, "UNPROVEN", "SSH login failed before the deadline"),
    ],
)
def test_the_verdict_is_of_the_checks(check: Callable[[Condition], HostResults], verdict: str, reason: str) -> None:
    (one,) = condition.prove([ok()], check, 1)
    assert (one.verdict, one.reasons) == (verdict, [reason] if reason else [])
    assert json.loads(json.dumps(one.to_json()))["verdict"] == verdict


@pytest.mark.parametrize(("verdict", "expected"), [("PASS", "PASS"), ("UNPROVEN", "UNPROVEN")])
def test_the_drill_of_a_neuron_machine_is_its_own(verdict: str, expected: str) -> None:
    drill = CheckRecord("neuron_error::test_drill_is_labelled", "neuron_error", "T2", "", Verdict(verdict))
    others = [check for check in results().checks if check.role != "xid"]
    (one,) = condition.prove([ok()], lambda _: HostResults("h", (*others, drill)), 1)
    assert one.verdict == expected


def test_the_selection_has_the_telemetry_s_checks() -> None:
    """The expression is pytest's, and takes the drill but no injected Xid."""
    from _pytest.mark.expression import Expression

    def chosen(module: str, name: str) -> bool:
        return Expression.compile(condition.SELECTION).evaluate(lambda word, **_: word in f"{module}.py {name}")

    assert chosen("event_parser", "test_parser_has_a_heartbeat") and chosen("xid", "test_drill_is_labelled")
    assert chosen("neuron_error", "test_drill_arrives_once")
    assert not chosen("xid", "test_kernel_xid_arrives_once") and not chosen("efa", "test_provider")
    assert not chosen("event_parser", "test_kernel_ring_is_large_enough")
