"""Reads container instances of ECS, and runs tasks on them. The checks call ECS only here.

A refused call raises ApiRefused, as one of CloudWatch does: it says nothing about the image. What these calls make has
the run's id in its name and the run's tags.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from validator.cloudwatch import CloudWatch

ACTIVE, STOPPED = "ACTIVE", "STOPPED"
# The agent disconnects and reconnects several times an hour as a part of its normal operation (ECS developer guide,
# "Amazon ECS container instance state change events", read 2026-11-26); a task that is to start meanwhile is refused
# (treasure-data/digdag#1723, read 2026-11-25).
NOT_CONNECTED, RECONNECT_SECONDS = "AGENT", 90.0


@dataclass(frozen=True)
class ContainerInstance:
    """One registration. gpus: UUIDs; connected: whether ECS hears its agent."""

    arn: str
    status: str
    connected: bool
    gpus: tuple[str, ...]
    agent: str
    docker: str


@dataclass(frozen=True)
class Task:
    """One task. exit_code: of its container, None where there is none; gpus: UUIDs that ECS gave it.

    reason: why it ended. refused: why ECS did not start it, as `RESOURCE:GPU`; "" where it did.
    """

    arn: str = ""
    status: str = ""
    exit_code: int | None = None
    gpus: tuple[str, ...] = ()
    reason: str = ""
    refused: str = ""


class ContainerService:
    """ECS of the region of `cloudwatch`, whose retries and waits it has."""

    def __init__(self, cloudwatch: CloudWatch, cluster: str) -> None:
        self.cloudwatch, self.cluster = cloudwatch, cluster

    @functools.cached_property
    def _ecs(self) -> Any:
        return self.cloudwatch.client("ecs")

    def instances(self, instance_id: str) -> list[ContainerInstance]:
        """The registrations of an EC2 instance in the cluster, newest first: an agent without state makes another."""
        query = f"ec2InstanceId == {instance_id}"
        listed = self._call("ListContainerInstances", self._ecs.list_container_instances, filter=query)
        arns = listed["containerInstanceArns"]
        if not arns:
            return []
        described = self._call(
            "DescribeContainerInstances", self._ecs.describe_container_instances, containerInstances=arns
        )
        rows = sorted(described["containerInstances"], key=lambda row: row["registeredAt"], reverse=True)
        return [_instance(row) for row in rows]

    def define(self, run: str, tags: Mapping[str, str], container: Mapping[str, Any], folder: str) -> str:
        """ARN of a new revision of the run's task definition: a container without network, a folder of the host."""
        return str(
            self.cloudwatch.call(
                "ecs:RegisterTaskDefinition",
                lambda: self._ecs.register_task_definition(
                    family=family(run),
                    networkMode="none",
                    containerDefinitions=[dict(container)],
                    volumes=[{"name": "result", "host": {"sourcePath": folder}}],
                    tags=[{"key": key, "value": value} for key, value in tags.items()],
                ),
            )["taskDefinition"]["taskDefinitionArn"]
        )

    def start(self, definition: str, instance: str, run: str, tags: Mapping[str, str]) -> Task:
        """Starts a task on a container instance, once its agent is connected; its `refused` says why ECS did not."""
        start = functools.partial(
            self._call,
            "StartTask",
            self._ecs.start_task,
            taskDefinition=definition,
            containerInstances=[instance],
            startedBy=family(run),
            tags=[{"key": key, "value": value} for key, value in tags.items()],
        )
        last = Task()

        def look() -> Task | None:
            nonlocal last
            last = _started(start())
            return None if last.refused == NOT_CONNECTED else last

        return self.cloudwatch.wait(look, RECONNECT_SECONDS) or last

    def task(self, arn: str) -> Task:
        """The task as ECS knows it now; one that it does not know has status ""."""
        rows = self._call("DescribeTasks", self._ecs.describe_tasks, tasks=[arn])["tasks"]
        return _task(rows[0]) if rows else Task(arn=arn)

    def ended(self, arn: str, seconds: float) -> Task:
        """The task once it has stopped, or as it is after so many seconds."""
        last = self.task(arn)

        def look() -> Task | None:
            nonlocal last
            last = self.task(arn)
            return last if last.status == STOPPED else None

        return self.cloudwatch.wait(look, seconds) or last

    def stop(self, arn: str) -> None:
        self._call("StopTask", self._ecs.stop_task, task=arn, reason="the check has ended")

    def remove_definition(self, arn: str) -> None:
        """Deregisters and deletes a revision of the run's task definition."""
        ecs, named = self._ecs, {"taskDefinition": arn}
        self.cloudwatch.call("ecs:DeregisterTaskDefinition", lambda: ecs.deregister_task_definition(**named))
        self.cloudwatch.call("ecs:DeleteTaskDefinitions", lambda: ecs.delete_task_definitions(taskDefinitions=[arn]))

    def _call(self, action: str, call: Any, **arguments: Any) -> Any:
        return self.cloudwatch.call(f"ecs:{action}", functools.partial(call, cluster=self.cluster, **arguments))


def family(run: str) -> str:
    """Name of a run's task definition; `gpu-ami sweep` knows it by this name."""
    return f"gpu-ami-{run}"


def _instance(row: Mapping[str, Any]) -> ContainerInstance:
    gpus: Sequence[str] = next(
        (each["stringSetValue"] for each in row["registeredResources"] if each["name"] == "GPU"), ()
    )
    versions = row.get("versionInfo", {})
    return ContainerInstance(
        arn=str(row["containerInstanceArn"]),
        status=str(row["status"]),
        connected=bool(row["agentConnected"]),
        gpus=tuple(gpus),
        agent=str(versions.get("agentVersion", "")),
        docker=str(versions.get("dockerVersion", "")),
    )


def _started(answer: Mapping[str, Any]) -> Task:
    if answer["tasks"]:
        return _task(answer["tasks"][0])
    return Task(refused=str(answer["failures"][0]["reason"]) if answer["failures"] else "ECS does not say why")


def _task(row: Mapping[str, Any]) -> Task:
    container = row["containers"][0] if row.get("containers") else {}
    reasons = [str(each) for each in (container.get("reason"), row.get("stoppedReason")) if each]
    code = container.get("exitCode")
    return Task(
        arn=str(row["taskArn"]),
        status=str(row["lastStatus"]),
        exit_code=None if code is None else int(code),
        gpus=tuple(container.get("gpuIds", ())),
        reason="; ".join(reasons),
    )
