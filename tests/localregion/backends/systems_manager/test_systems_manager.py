"""Managed nodes, documents, commands and associations of the region's Systems Manager, without a machine."""

from __future__ import annotations

from typing import Any

import pytest

from localregion.backends import Refused
from localregion.backends.systems_manager.documents import AWS_DOCUMENTS, Step, require_size, steps
from localregion.backends.systems_manager.ssm import Association, Command, Invocation, Nodes, PluginResult, limit
from tests.localregion.conftest import Clock, World


def test_a_refusal_names_code_and_sentence() -> None:
    assert str(Refused("InvalidInstanceId", "not managed")) == "InvalidInstanceId: not managed"


def test_filters_select_an_association() -> None:
    one = Association("Document", "name", [], {}, 0.0)
    assert one.is_selected([{"key": "AssociationName", "value": "name"}, {"key": "Name", "value": "Document"}])
    assert not one.is_selected([{"key": "AssociationName", "value": "other"}])
    assert one.describe()["Overview"] == {"Status": "Pending"}


# Concurrency, errors and deadlines of a command.


STEP = Step("shell", "aws:runShellScript", {"timeoutSeconds": "60"})


def command(count: int, concurrency: str = "50", errors: str = "0") -> Command:
    invocations = {name: Invocation(name, [STEP]) for name in (f"i-{number}" for number in range(count))}
    return Command("D", {}, invocations, 0.0, 100.0, concurrency, errors)


def running(_: str) -> bool:
    return True


@pytest.mark.parametrize(("text", "of", "expected"), [("10", 3, 10), ("50%", 5, 2), ("100%", 7, 7), ("0", 9, 0)])
def test_a_limit_is_a_number_or_a_percentage(text: str, of: int, expected: int) -> None:
    assert limit(text, of) == expected


def test_only_so_many_run_at_a_time() -> None:
    one = command(3, concurrency="2")
    assert [bool(one.next_for(f"i-{number}", 1.0)) for number in range(3)] == [True, True, False]
    one.take_reply("i-0", [PluginResult("shell", "Success", 0)], 2.0)
    assert one.next_for("i-2", 3.0)


def test_a_delivery_timeout_is_no_error() -> None:
    one = command(2)
    one.next_for("i-0", 1.0)
    one.advance(101.0, running)
    assert one.invocations["i-1"].details == "DeliveryTimedOut" and not one.invocations["i-1"].counts_as_error
    one.take_reply("i-0", [PluginResult("shell", "Success", 0)], 102.0)
    assert one.status == ("Failed", "Incomplete")


def test_what_never_answers_is_an_execution_timeout() -> None:
    one = command(1)
    one.next_for("i-0", 1.0)
    one.advance(161.0, running)
    assert one.status == ("InProgress", "InProgress")
    one.advance(161.1, running)
    assert one.invocations["i-0"].details == "ExecutionTimedOut"
    one.take_reply("i-0", [PluginResult("shell", "Success", 0)], 300.0)  # too late
    assert one.invocations["i-0"].status == "TimedOut"


def test_a_cancelled_command_is_cancelled() -> None:
    one = command(1)
    one.cancel(1.0)
    assert one.status == ("Cancelled", "Cancelled") and one.describe()["CompletedCount"] == 1


# Which instances are managed nodes, and who is online.


def test_a_node_is_online_while_its_agent_asks(world: World) -> None:
    clock, instance = Clock(100.0), world.launch()
    nodes = Nodes(world.ec2, clock, silent_seconds=30)
    with pytest.raises(Refused, match="not registered"):
        nodes.ping(instance.id)
    assert [nodes.report(instance.id, {"PlatformName": "Debian"}) for _ in range(2)] == [True, False]
    clock.now += 29
    assert nodes.describe([])[0]["PingStatus"] == "Online"
    clock.now += 2
    (row,) = nodes.describe([{"Key": "PingStatus", "Values": ["ConnectionLost"]}])
    assert (row["InstanceId"], row["PlatformName"], row["RegistrationDate"]) == (instance.id, "Debian", 100.0)
    nodes.ping(instance.id)
    assert nodes.is_online(instance.id)


def test_targets_select_by_id_and_tag(world: World) -> None:
    nodes = Nodes(world.ec2)
    ids = [world.launch(tags={"instance": {"fleet": name}}).id for name in "ab"]
    for each in ids:
        nodes.report(each, {})
    assert nodes.matching([{"Key": "tag:fleet", "Values": ["a"]}]) == [ids[0]]
    assert nodes.matching([{"Key": "InstanceIds", "Values": [ids[1]]}]) == [ids[1]]
    with pytest.raises(Refused, match="InvalidTarget"):
        nodes.matching([{"Key": "resource-groups:Name", "Values": ["x"]}])


def test_a_terminated_instance_is_no_node(world: World) -> None:
    nodes, instance = Nodes(world.ec2), world.launch()
    nodes.report(instance.id, {})
    world.ec2.set_state(instance, "terminated")
    assert nodes.describe([]) == [] and not nodes.is_managed(instance.id)
    with pytest.raises(Refused, match="InvalidInstanceId"):
        nodes.report(instance.id, {})


def test_an_unknown_filter_is_refused(world: World) -> None:
    with pytest.raises(Refused, match="InvalidFilterKey"):
        Nodes(world.ec2).describe([{"Key": "AgentVersion", "Values": ["1"]}])


# The steps of a document with its parameters.


def look_up(name: str) -> Any:
    return AWS_DOCUMENTS[name]


def document(**parts: Any) -> dict[str, Any]:
    step = {"action": "aws:runShellScript", "name": "one", "inputs": {"runCommand": ["echo {{ word }}", "{{word}}"]}}
    return {"schemaVersion": "2.2", "parameters": {"word": {"type": "String"}}, "mainSteps": [step], **parts}


def test_parameters_are_put_in_place() -> None:
    (step,) = steps(document(), {"word": ["hello"]}, look_up)
    assert step.inputs["runCommand"] == ["echo hello", "hello"]


def test_a_list_replaces_a_whole_value() -> None:
    (step,) = steps(AWS_DOCUMENTS["AWS-RunShellScript"], {"commands": ["a", "b"]}, look_up)
    assert (step.inputs["runCommand"], step.timeout_seconds) == (["a", "b"], 3600.0)


@pytest.mark.parametrize(
    ("made", "given", "message"),
    [
        (document(), {}, "Parameter word is required"),
        (document(), {"word": ["x"], "other": ["y"]}, "not defined in the document: other"),
        (document(parameters={}), {}, "InvalidDocumentContent: Parameter word is not defined"),
        (document(mainSteps=[{"action": "aws:refreshAssociation", "name": "r"}]), {"word": ["x"]}, "InvalidDocument"),
        (AWS_DOCUMENTS["AWS-ConfigureAWSPackage"], {"action": ["Remove"], "name": ["x"]}, "'Remove' is not one of"),
    ],
)
def test_a_mistake_is_refused(made: Any, given: Any, message: str) -> None:
    with pytest.raises(Refused, match=message):
        steps(made, given, look_up)


def test_documents_run_documents_to_a_depth() -> None:
    inputs = {
        "documentType": "SSMDocument",
        "documentPath": "AWS-RunShellScript",
        "documentParameters": '{"commands": "ls"}',
    }
    outer = {"mainSteps": [{"action": "aws:runDocument", "name": "list", "inputs": inputs}]}
    assert [(step.name, step.inputs["runCommand"]) for step in steps(outer, {}, look_up)] == [("list", ["ls"])]
    endless: dict[str, Any] = {
        "mainSteps": [{"action": "aws:runDocument", "name": "again", "inputs": {"documentPath": "itself"}}]
    }
    with pytest.raises(Refused, match="more than 3 deep"):
        steps(endless, {}, lambda _: endless)


def test_a_document_has_64_kb() -> None:
    require_size("x" * 65536)
    with pytest.raises(Refused, match="64 KB"):
        require_size("x" * 65537)
