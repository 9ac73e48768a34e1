"""Systems Manager: who is online, documents, one command on many machines, and refusals that blame no machine."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpu_ami.cloud import ApiAccess, Cloud, Place, systems_manager
from gpu_ami.cloud.place import Credentials
from gpu_ami.cloud.systems_manager import FleetMachine, Limits, Outcome, Selection
from gpu_ami.errors import CloudError, UsageError
from localregion.backends import Refused
from tests.fleet.service_machines import GROUP, Fleet

ALL = Selection(tags={"fleet": "train"})
SAY = {
    "schemaVersion": "2.2",
    "parameters": {"code": {"type": "String"}},
    "mainSteps": [
        {
            "action": "aws:runShellScript",
            "name": "says",
            "inputs": {"runCommand": ['echo \'{"is": "here"}\'', "echo broken >&2", "exit {{ code }}"]},
        }
    ],
}


def run(in_service: Fleet, code: str = "0", **more: Any) -> dict[str, Outcome]:
    systems_manager.ensure_document(in_service.cloud, "say", SAY)
    found = systems_manager.find(in_service.cloud, ALL)
    return systems_manager.run(in_service.cloud, found, "say", {"code": code}, Limits("5", "100%", 30), **more)


def test_each_machine_has_its_own_outcome(in_service: Fleet) -> None:
    fine, silent = in_service.add(), in_service.add(start=False)
    in_service.wait()
    seen: list[tuple[int, int]] = []
    outcomes = run(in_service, on_update=lambda done, total: seen.append((done, total)))
    assert outcomes[fine.instance_id].answer == {"is": "here"} and outcomes[silent.instance_id].status == "Silent"
    assert seen[-1] == (2, 2)
    failed = run(in_service, "7")[fine.instance_id]
    assert (failed.status, failed.text, failed.code) == ("Failed", "broken", 7) and failed.answer == {}


def test_a_throttled_look_is_repeated(in_service: Fleet, monkeypatch: pytest.MonkeyPatch) -> None:
    in_service.add()
    in_service.wait()
    monkeypatch.setattr(systems_manager, "invocations", throttled(systems_manager.invocations))
    assert [outcome.status for outcome in run(in_service).values()] == ["Success"]


def throttled(plain: Any) -> Any:
    """As the client answers when botocore's own attempts are used up: the first look of a command is empty."""
    looks = iter([[]])
    return lambda *arguments: next(looks, None) or plain(*arguments)


@pytest.mark.parametrize("code", ["AccessDeniedException", "ThrottlingException"])
def test_a_refused_command_is_no_machine_s_fault(in_service: Fleet, code: str, monkeypatch: pytest.MonkeyPatch) -> None:
    in_service.add()
    in_service.wait()
    service = in_service.world.systems_manager
    plain = service.answer

    def refuse(name: str, *arguments: object) -> object:
        if name == "ssm:SendCommand":
            raise Refused(code, "no")
        return plain(name, *arguments)

    monkeypatch.setattr(service, "answer", refuse)
    with pytest.raises(CloudError, match=code) as caught:
        run(in_service)
    assert caught.value.exit_code == 4


def test_a_machine_that_never_ends_has_a_deadline(in_service: Fleet) -> None:
    machine = in_service.add()
    in_service.wait()
    slow = {**SAY, "mainSteps": [{**SAY["mainSteps"][0], "inputs": {"runCommand": ["sleep 2"]}}], "parameters": {}}  # type: ignore[dict-item,index]
    systems_manager.ensure_document(in_service.cloud, "slow", slow)
    found = systems_manager.find(in_service.cloud, ALL)
    outcomes = systems_manager.run(in_service.cloud, found, "slow", {}, seconds=1.0)
    assert outcomes[machine.instance_id] == Outcome("TimedOut", "no result before the deadline")


@pytest.mark.parametrize(
    ("script", "calls"), [("echo here", 0), ("echo here; echo odd >&2", 1), ("yes | head -n 2000", 1)]
)
def test_output_that_the_list_has_is_not_asked_for_again(in_service: Fleet, script: str, calls: int) -> None:
    """A hundred machines and nine steps would be nine hundred calls, which AWS throttles."""
    machine = in_service.add()
    in_service.wait()
    systems_manager.ensure_document(in_service.cloud, "short", {**SAY, "parameters": {}, "mainSteps": [
        {"action": "aws:runShellScript", "name": "says", "inputs": {"runCommand": [script]}}]})  # fmt: skip
    asked: list[str] = []
    in_service.cloud.client("ssm").meta.events.register(
        "before-call.ssm.GetCommandInvocation", lambda **_: asked.append("call")
    )
    outcome = systems_manager.run(in_service.cloud, systems_manager.find(in_service.cloud, ALL), "short", {}, Limits())
    assert len(asked) == calls
    said = outcome[machine.instance_id]
    assert (
        said.status == "Success"
        and "odd" not in said.text
        and len(said.text.split()) == (2000 if "yes" in script else 1)
    )


# When a machine's newest log event was written.


def test_the_newest_event_is_found_and_none_is_none(in_service: Fleet) -> None:
    machine = in_service.add(start=False)
    assert systems_manager.newest_event(in_service.cloud, GROUP, machine.instance_id) is None
    for seconds in (500, 5, 300):
        in_service.heartbeat(machine, seconds)
    newest = systems_manager.newest_event(in_service.cloud, GROUP, machine.instance_id)
    assert newest is not None and time.time() - newest == pytest.approx(5, abs=4)
    assert systems_manager.newest_event(in_service.cloud, GROUP, "i-none") is None


# Documents and parameters are made once, renewed when they differ, and removed without a trace.


def content(line: str) -> dict[str, Any]:
    step = {"action": "aws:runShellScript", "name": "x", "inputs": {"runCommand": [line]}}
    return {"schemaVersion": "2.2", "mainSteps": [step]}


@pytest.fixture
def cloud(endpoint: str) -> Cloud:
    return Cloud(
        Place("local", "us-east-1", api=ApiAccess(endpoint=endpoint, credentials=Credentials("local", "local")))
    )


def test_a_document_is_made_once_and_renewed_when_it_differs(cloud: Cloud) -> None:
    for line in ("one", "one", "two"):
        systems_manager.ensure_document(cloud, "mine", content(line))
    described = cloud.client("ssm").describe_document(Name="mine")["Document"]
    assert (described["DocumentVersion"], described["DefaultVersion"]) == ("2", "2")
    assert systems_manager.remove_documents(cloud, ["mine", "never-made"]) == ["mine"]


def test_a_parameter_has_the_tier_that_it_needs(cloud: Cloud) -> None:
    systems_manager.ensure_parameter(cloud, "AmazonCloudWatch-a", "x" * 4096)
    systems_manager.ensure_parameter(cloud, "AmazonCloudWatch-b", "x" * 4097)
    ssm = cloud.client("ssm")
    tiers = {row["Name"]: row.get("Tier") for row in ssm.describe_parameters()["Parameters"]}
    assert tiers == {"AmazonCloudWatch-a": "Standard", "AmazonCloudWatch-b": "Advanced"}
    with pytest.raises(CloudError, match="8193 bytes, at most 8192"):
        systems_manager.ensure_parameter(cloud, "AmazonCloudWatch-c", "x" * 8193)
    assert systems_manager.remove_parameters(cloud, ["AmazonCloudWatch-a", "AmazonCloudWatch-z"]) == [
        "AmazonCloudWatch-a"
    ]


def test_an_association_is_made_anew_with_its_targets(cloud: Cloud) -> None:
    systems_manager.ensure_document(cloud, "mine", content("true"))
    first = systems_manager.ensure_association(cloud, "all", "mine", [{"Key": "tag:a", "Values": ["b"]}], Limits())
    second = systems_manager.ensure_association(cloud, "all", "mine", [{"Key": "tag:a", "Values": ["c"]}], Limits())
    assert first != second
    assert (
        systems_manager.remove_associations(cloud, "all") == [second]
        and systems_manager.remove_associations(cloud, "all") == []
    )


# Which machines are meant, and which can be reached.


@pytest.mark.parametrize(
    ("ids", "tags", "group", "message"),
    [
        ([], [], "", "name the machines"),
        (["i-1"], ["a=b"], "", "name the machines"),
        ([], ["training"], "", "--tag: expected KEY=VALUE, got 'training'"),
        ([], ["=x"], "", "--tag: expected KEY=VALUE"),
    ],
)
def test_a_selection_needs_one_kind(ids: list[str], tags: list[str], group: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Selection.of(ids, tags, group)


def test_a_group_is_the_tag_that_auto_scaling_sets() -> None:
    chosen = Selection.of([], ["fleet=a=b"], "train")
    assert chosen.tags == {"fleet": "a=b", "aws:autoscaling:groupName": "train"}
    assert chosen.targets[1] == {"Key": "tag:aws:autoscaling:groupName", "Values": ["train"]}


def test_machines_are_found_with_their_agents(in_service: Fleet) -> None:
    managed, unmanaged = in_service.add(), in_service.add(start=False)
    in_service.wait()
    rows = {row.instance_id: row for row in systems_manager.find(in_service.cloud, Selection(tags={"fleet": "train"}))}
    assert rows[managed.instance_id].silence == "" and rows[managed.instance_id].addresses["private_ip"]
    assert "does not manage it" in rows[unmanaged.instance_id].silence
    by_id = systems_manager.find(in_service.cloud, Selection((managed.instance_id,)))
    assert [row.instance_id for row in by_id] == [managed.instance_id]


def test_none_is_a_mistake_and_an_unknown_id_an_error(in_service: Fleet) -> None:
    with pytest.raises(UsageError, match="no instance in us-east-1 has fleet=none"):
        systems_manager.find(in_service.cloud, Selection(tags={"fleet": "none"}))
    with pytest.raises(CloudError, match=r"InvalidInstanceID\.NotFound"):
        systems_manager.find(in_service.cloud, Selection(("i-0123456789abcdef0",)))


@pytest.mark.parametrize(
    ("state", "ping", "words"),
    [("stopped", "Online", "stopped"), ("running", "ConnectionLost", "ConnectionLost"), ("running", "", "AmazonSSM")],
)
def test_silence_has_a_reason(state: str, ping: str, words: str) -> None:
    assert words in FleetMachine("i-1", "g5.12xlarge", state, ping=ping).silence
