"""Machines of a fleet by SSM: who is online, which documents they run, who is awaited."""

from __future__ import annotations

import time
from typing import Any

import pytest

from gpu_ami.cloud import ApiAccess, Cloud, Place
from gpu_ami.cloud.fleet import FleetMachine, Limits, Selection, machines, run_command
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import CloudError, UsageError
from tests.fleet.service_machines import GROUP, Fleet

# When a machine's newest log event was written.


def test_the_newest_event_is_found_and_none_is_none(in_service: Fleet) -> None:
    machine = in_service.add(start=False)
    assert machines.newest_event(in_service.cloud, GROUP, machine.instance_id) is None
    for seconds in (500, 5, 300):
        in_service.heartbeat(machine, seconds)
    newest = machines.newest_event(in_service.cloud, GROUP, machine.instance_id)
    assert newest is not None and time.time() - newest == pytest.approx(5, abs=4)
    assert machines.newest_event(in_service.cloud, GROUP, "i-none") is None


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
        run_command.ensure_document(cloud, "mine", content(line))
    described = cloud.client("ssm").describe_document(Name="mine")["Document"]
    assert (described["DocumentVersion"], described["DefaultVersion"]) == ("2", "2")
    assert run_command.remove_documents(cloud, ["mine", "never-made"]) == ["mine"]


def test_a_parameter_has_the_tier_that_it_needs(cloud: Cloud) -> None:
    run_command.ensure_parameter(cloud, "AmazonCloudWatch-a", "x" * 4096)
    run_command.ensure_parameter(cloud, "AmazonCloudWatch-b", "x" * 4097)
    ssm = cloud.client("ssm")
    tiers = {row["Name"]: row.get("Tier") for row in ssm.describe_parameters()["Parameters"]}
    assert tiers == {"AmazonCloudWatch-a": "Standard", "AmazonCloudWatch-b": "Advanced"}
    with pytest.raises(CloudError, match="8193 bytes, at most 8192"):
        run_command.ensure_parameter(cloud, "AmazonCloudWatch-c", "x" * 8193)
    assert run_command.remove_parameters(cloud, ["AmazonCloudWatch-a", "AmazonCloudWatch-z"]) == ["AmazonCloudWatch-a"]


def test_an_association_is_made_anew_with_its_targets(cloud: Cloud) -> None:
    run_command.ensure_document(cloud, "mine", content("true"))
    first = run_command.ensure_association(cloud, "all", "mine", [{"Key": "tag:a", "Values": ["b"]}], Limits())
    second = run_command.ensure_association(cloud, "all", "mine", [{"Key": "tag:a", "Values": ["c"]}], Limits())
    assert first != second
    assert (
        run_command.remove_associations(cloud, "all") == [second]
        and run_command.remove_associations(cloud, "all") == []
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
    rows = {row.instance_id: row for row in machines.find(in_service.cloud, Selection(tags={"fleet": "train"}))}
    assert rows[managed.instance_id].silence == "" and rows[managed.instance_id].addresses["private_ip"]
    assert "does not manage it" in rows[unmanaged.instance_id].silence
    by_id = machines.find(in_service.cloud, Selection((managed.instance_id,)))
    assert [row.instance_id for row in by_id] == [managed.instance_id]


def test_none_is_a_mistake_and_an_unknown_id_an_error(in_service: Fleet) -> None:
    with pytest.raises(UsageError, match="no instance in us-east-1 has fleet=none"):
        machines.find(in_service.cloud, Selection(tags={"fleet": "none"}))
    with pytest.raises(CloudError, match=r"InvalidInstanceID\.NotFound"):
        machines.find(in_service.cloud, Selection(("i-0123456789abcdef0",)))


@pytest.mark.parametrize(
    ("state", "ping", "words"),
    [("stopped", "Online", "stopped"), ("running", "ConnectionLost", "ConnectionLost"), ("running", "", "AmazonSSM")],
)
def test_silence_has_a_reason(state: str, ping: str, words: str) -> None:
    assert words in FleetMachine("i-1", "g5.12xlarge", state, ping=ping).silence
