"""Systems Manager of the region as boto3 sees it, with machines whose agents run real shell."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localregion.backends import instance_access_key
from tests.localregion.api.test_layer import client, refused
from tests.localregion.conftest import SILENT_SECONDS, World
from tests.localregion.managed_machines import ManagedMachine
from tests.waiting import until

Start = Callable[..., ManagedMachine]
SHELL = "AWS-RunShellScript"


@pytest.fixture
def start(world: World, endpoint: str, tmp_path: Path) -> Iterator[Start]:
    machines: list[ManagedMachine] = []

    def one(role: str = "gpu-ami-local", tags: dict[str, str] | None = None) -> ManagedMachine:
        instance = world.launch(tags={"instance": tags or {"Name": "one"}})
        machine = ManagedMachine(endpoint, instance.id, tmp_path / instance.id, role)
        machines.append(machine)
        machine.start()
        return machine

    yield one
    for machine in machines:
        machine.close()


@pytest.fixture
def ssm(endpoint: str) -> Any:
    return client(endpoint, "ssm")


def ping(ssm: Any, machine: ManagedMachine) -> str:
    filters = [{"Key": "InstanceIds", "Values": [machine.instance_id]}]
    rows = ssm.describe_instance_information(Filters=filters)["InstanceInformationList"]
    return str(rows[0]["PingStatus"]) if rows else ""


def online(ssm: Any, *machines: ManagedMachine) -> None:
    for machine in machines:
        until(lambda machine=machine: ping(ssm, machine) == "Online")


def ended(ssm: Any, command: dict[str, Any], machine: ManagedMachine) -> dict[str, Any]:
    def look() -> dict[str, Any] | None:
        found: dict[str, Any] = ssm.get_command_invocation(
            CommandId=command["Command"]["CommandId"], InstanceId=machine.instance_id
        )
        return found if found["Status"] not in ("Pending", "InProgress") else None

    return dict(until(look))


def run(ssm: Any, machine: ManagedMachine, *lines: str, **more: Any) -> dict[str, Any]:
    sent = ssm.send_command(
        InstanceIds=[machine.instance_id], DocumentName=SHELL, Parameters={"commands": list(lines)}, **more
    )
    return ended(ssm, sent, machine)


def test_a_command_runs_on_its_machine(ssm: Any, start: Start) -> None:
    machine = start()
    online(ssm, machine)
    result = run(ssm, machine, 'echo "in $GPU_AMI_ROOT"', "echo wrong >&2", "exit 3")
    assert (result["Status"], result["StatusDetails"], result["ResponseCode"]) == ("Failed", "Failed", 3)
    assert result["StandardOutputContent"] == f"in {machine.root}\n"
    assert result["StandardErrorContent"] == "wrong\n"
    (row,) = ssm.list_command_invocations(CommandId=result["CommandId"], Details=True)["CommandInvocations"]
    assert row["CommandPlugins"][0]["Output"].startswith(f"in {machine.root}")


def test_without_an_instance_profile_there_is_no_managed_node(ssm: Any, start: Start) -> None:
    machine, other = start(role=""), start()
    online(ssm, other)
    assert ping(ssm, machine) == ""
    asked = {"DocumentName": SHELL, "Parameters": {"commands": ["true"]}}
    assert refused(ssm.send_command, InstanceIds=[machine.instance_id], **asked) == ("InvalidInstanceId", 400)


def test_a_stopped_agent_is_a_lost_connection_and_its_command_times_out(ssm: Any, start: Start, world: World) -> None:
    machine = start()
    online(ssm, machine)
    machine.stop()
    assert ping(ssm, machine) == "Online"
    world.later += SILENT_SECONDS
    assert ping(ssm, machine) == "ConnectionLost"
    sent = ssm.send_command(
        InstanceIds=[machine.instance_id], DocumentName=SHELL, Parameters={"commands": ["true"]}, TimeoutSeconds=30
    )
    world.later += 31
    result = ended(ssm, sent, machine)
    assert (result["Status"], result["StatusDetails"]) == ("TimedOut", "DeliveryTimedOut")


def test_a_step_that_takes_too_long_is_ended(ssm: Any, start: Start) -> None:
    machine = start()
    online(ssm, machine)
    sent = ssm.send_command(
        InstanceIds=[machine.instance_id], DocumentName=SHELL,
        Parameters={"commands": ["echo begun; sleep 60"], "executionTimeout": ["1"]},
    )  # fmt: skip
    result = ended(ssm, sent, machine)
    assert (result["Status"], result["StatusDetails"]) == ("TimedOut", "ExecutionTimedOut")
    assert result["StandardOutputContent"] == "begun\n"


def test_a_stopped_instance_is_undeliverable(ssm: Any, start: Start, world: World) -> None:
    machine = start()
    online(ssm, machine)
    machine.stop()
    world.ec2.set_state(world.ec2.instance(machine.instance_id), "stopped")
    result = run(ssm, machine, "true")
    assert (result["Status"], result["StatusDetails"]) == ("Failed", "Undeliverable")


def test_after_too_many_errors_nothing_further_begins(ssm: Any, start: Start) -> None:
    machines = [start(tags={"fleet": "a"}) for _ in range(3)]
    online(ssm, *machines)
    sent = ssm.send_command(
        Targets=[{"Key": "tag:fleet", "Values": ["a"]}], DocumentName=SHELL, Parameters={"commands": ["exit 1"]},
        MaxConcurrency="1", MaxErrors="0",
    )  # fmt: skip
    details = sorted(ended(ssm, sent, machine)["StatusDetails"] for machine in machines)
    assert details == ["Failed", "Terminated", "Terminated"]
    (row,) = ssm.list_commands(CommandId=sent["Command"]["CommandId"])["Commands"]
    assert (row["Status"], row["ErrorCount"], row["TargetCount"]) == ("Failed", 1, 3)


def test_an_association_runs_on_machines_to_come(ssm: Any, start: Start) -> None:
    content = {
        "schemaVersion": "2.2",
        "mainSteps": [
            {
                "action": "aws:runDocument",
                "name": "shell",
                "inputs": {
                    "documentType": "SSMDocument",
                    "documentPath": SHELL,
                    "documentParameters": {"commands": ['touch "$GPU_AMI_ROOT/was-here"']},
                },
            }
        ],
    }
    ssm.create_document(Name="mine", Content=json.dumps(content), DocumentType="Command")
    first = start(tags={"fleet": "b"})
    online(ssm, first)
    made = ssm.create_association(
        Name="mine", AssociationName="all", Targets=[{"Key": "tag:fleet", "Values": ["b"]}]
    )["AssociationDescription"]  # fmt: skip
    later, other = start(tags={"fleet": "b"}), start(tags={"fleet": "c"})
    online(ssm, later, other)
    until(lambda: (first.root / "was-here").exists() and (later.root / "was-here").exists())
    assert not (other.root / "was-here").exists()
    named = [{"key": "AssociationName", "value": "all"}]
    assert [row["AssociationId"] for row in ssm.list_associations(AssociationFilterList=named)["Associations"]] == [
        made["AssociationId"]
    ]
    ssm.delete_association(AssociationId=made["AssociationId"])
    assert ssm.list_associations()["Associations"] == []


def test_the_cloudwatch_agent_is_managed_as_its_documents_say(ssm: Any, start: Start) -> None:
    machine = start()
    online(ssm, machine)
    asked = {"action": ["Install"], "name": ["AmazonCloudWatchAgent"]}
    sent = ssm.send_command(InstanceIds=[machine.instance_id], DocumentName="AWS-ConfigureAWSPackage", Parameters=asked)
    result = ended(ssm, sent, machine)
    assert result["Status"] == "Failed" and "not in the mirror" in result["StandardErrorContent"]
    bad = {"action": ["reconfigure"]}
    named = {"InstanceIds": [machine.instance_id], "DocumentName": "AmazonCloudWatch-ManageAgent"}
    assert refused(ssm.send_command, **named, Parameters=bad) == ("InvalidParameters", 400)


def test_a_document_of_more_than_64_kb_is_refused(ssm: Any) -> None:
    step = {"action": "aws:runShellScript", "name": "x", "inputs": {"runCommand": ["#" * 70000]}}
    content = json.dumps({"schemaVersion": "2.2", "mainSteps": [step]})
    made = {"Name": "big", "Content": content, "DocumentType": "Command"}
    assert refused(ssm.create_document, **made) == ("MaxDocumentSizeExceeded", 400)


def test_agents_actions_are_for_agents(endpoint: str, world: World, ssm: Any) -> None:
    import urllib.error
    import urllib.request

    def ask(key: str) -> int:
        scope = f"Credential={key}/20261123/us-east-1/ec2messages/aws4_request"
        headers = {"X-Amz-Target": "X.GetMessages", "Authorization": f"AWS4-HMAC-SHA256 {scope}"}
        try:
            return int(urllib.request.urlopen(urllib.request.Request(endpoint, b"{}", headers)).status)
        except urllib.error.HTTPError as error:
            return error.code

    assert ask("AKIACALLER") == 400
    assert ask(instance_access_key("i-0123456789abcdef0")) == 400  # not registered
    assert refused(ssm.get_command_invocation, CommandId="0" * 36, InstanceId="i-0123456789abcdef0")[0] == (
        "InvocationDoesNotExist"
    )
