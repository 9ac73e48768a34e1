"""What the checks ask of ECS, and what they read of its answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.aws_requests import check_call
from validator.checks.node_in_ecs import ContainerService, family
from validator.cloudwatch import ApiRefused, CloudWatch

RUN = "20261125-000000-abcdef"
ROW = {
    "containerInstanceArn": "arn:1", "registeredAt": 2.0, "status": "ACTIVE", "agentConnected": True,
    "versionInfo": {"agentVersion": "1.100.1", "dockerVersion": "DockerVersion: 25.0.13"},
    "registeredResources": [
        {"name": "CPU", "type": "INTEGER", "integerValue": 4096},
        {"name": "GPU", "type": "STRINGSET", "stringSetValue": ["GPU-a", "GPU-b"]},
    ],
}  # fmt: skip
TASK = {
    "taskArn": "arn:task", "lastStatus": "STOPPED", "stoppedReason": "Essential container in task exited",
    "containers": [{"name": "c", "exitCode": 0, "gpuIds": ["GPU-a"]}],
}  # fmt: skip


class Ecs:
    """A client of ECS: answers by method, and the arguments of each call."""

    def __init__(self, **answers: Any) -> None:
        self.answers, self.asked = answers, list[tuple[str, dict[str, Any]]]()

    def __getattr__(self, name: str) -> Any:
        def call(**arguments: Any) -> Any:
            check_call("ecs", name, arguments)
            self.asked.append((name, arguments))
            answer = self.answers.get(name, {})
            answer = answer() if callable(answer) else answer
            if isinstance(answer, Exception):
                raise answer
            return answer

        return call


def service(ecs: Ecs) -> ContainerService:
    cloudwatch = CloudWatch("us-east-1", session=SimpleNamespace(), retry_seconds=0)
    cloudwatch.client = lambda _name: ecs  # type: ignore[method-assign]
    return ContainerService(cloudwatch, "gpu-nodes")


def test_registrations_of_one_machine() -> None:
    ecs = Ecs(
        list_container_instances={"containerInstanceArns": ["arn:1"]},
        describe_container_instances={
            "containerInstances": [ROW | {"registeredAt": 1.0, "containerInstanceArn": "arn:0"}, ROW]
        },
    )
    found, older = service(ecs).instances("i-1")
    assert (found.arn, older.arn) == ("arn:1", "arn:0")
    assert (found.gpus, found.connected, found.docker) == (("GPU-a", "GPU-b"), True, "DockerVersion: 25.0.13")
    assert ecs.asked[0][1] == {"cluster": "gpu-nodes", "filter": "ec2InstanceId == i-1"}
    assert service(Ecs(list_container_instances={"containerInstanceArns": []})).instances("i-1") == []


def test_a_task_is_defined_started_and_read() -> None:
    ecs = Ecs(
        register_task_definition={"taskDefinition": {"taskDefinitionArn": "arn:d"}},
        start_task={"tasks": [TASK | {"lastStatus": "PENDING", "containers": [{"name": "c"}]}], "failures": []},
        describe_tasks={"tasks": [TASK]},
    )
    made = service(ecs)
    definition = made.define(RUN, {"gpu-ami:run": RUN}, {"name": "c"}, "/var/tmp/x")
    started = made.start(definition, "arn:1", RUN, {"gpu-ami:run": RUN})
    assert (started.arn, started.exit_code, started.refused) == ("arn:task", None, "")
    ended = made.ended(started.arn, 5)
    assert (ended.status, ended.exit_code, ended.gpus) == ("STOPPED", 0, ("GPU-a",))
    assert ended.reason == "Essential container in task exited"
    made.stop(started.arn)
    made.remove_definition(definition)
    calls = dict(ecs.asked)
    assert calls["register_task_definition"]["family"] == calls["start_task"]["startedBy"] == family(RUN)
    assert calls["register_task_definition"]["networkMode"] == "none"
    assert calls["register_task_definition"]["tags"] == [{"key": "gpu-ami:run", "value": RUN}]
    assert calls["stop_task"]["cluster"] == "gpu-nodes" and calls["delete_task_definitions"] == {
        "taskDefinitions": ["arn:d"]
    }


def test_a_task_that_ecs_does_not_start() -> None:
    failed = {"tasks": [], "failures": [{"arn": "arn:1", "reason": "RESOURCE:GPU"}]}
    assert service(Ecs(start_task=failed)).start("d", "i", RUN, {}).refused == "RESOURCE:GPU"
    silent = {"tasks": [], "failures": []}
    assert service(Ecs(start_task=silent)).start("d", "i", RUN, {}).refused == "ECS does not say why"
    assert service(Ecs(describe_tasks={"tasks": []})).task("arn").status == ""


def test_an_agent_that_reconnects_is_waited_for() -> None:
    """It does so several times an hour; ECS refuses a task meanwhile."""
    away = {"tasks": [], "failures": [{"arn": "arn:1", "reason": "AGENT"}]}
    answers = [away, away, {"tasks": [TASK], "failures": []}]
    ecs, waited = Ecs(), list[float]()
    ecs.answers["start_task"] = lambda: answers.pop(0)
    made = service(ecs)
    made.cloudwatch.sleep = waited.append
    assert made.start("d", "i", RUN, {}).arn == "arn:task" and len(waited) == 2
    ecs.answers["start_task"] = away
    made.cloudwatch.wait = lambda look, _seconds: look()  # type: ignore[method-assign, assignment]
    assert made.start("d", "i", RUN, {}).refused == "AGENT"


def test_a_refused_call_is_no_verdict_on_the_image() -> None:
    error = ClientError({"Error": {"Code": "AccessDeniedException", "Message": "no"}}, "StartTask")
    with pytest.raises(ApiRefused, match="ecs:StartTask: AccessDeniedException"):
        service(Ecs(start_task=error)).start("d", "i", RUN, {})
