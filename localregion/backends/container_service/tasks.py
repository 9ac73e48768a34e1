"""Tasks: what runs on one container instance, and what its agent says became of it."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localregion.backends import Refused
from localregion.backends.container_service.instances import ContainerInstance

PENDING, RUNNING, STOPPED = "PENDING", "RUNNING", "STOPPED"


def needs(definition: Mapping[str, Any]) -> dict[str, float]:
    """What a task of a definition takes of an instance: CPU units, MiB of memory, GPUs."""
    found = {"CPU": float(definition.get("cpu") or 0), "MEMORY": float(definition.get("memory") or 0)}
    of_containers = {"CPU": 0.0, "MEMORY": 0.0, "GPU": 0.0}
    for container in definition["containerDefinitions"]:
        of_containers["CPU"] += container.get("cpu") or 0
        of_containers["MEMORY"] += container.get("memoryReservation") or container.get("memory") or 0
        for row in container.get("resourceRequirements", []):
            of_containers[row["type"]] += float(row["value"])
    return {name: found.get(name) or amount for name, amount in of_containers.items() if found.get(name) or amount}


@dataclass
class Task:
    """One task. gpus: UUIDs of the GPUs that it has; results: exit code and reason of each container, by name."""

    arn: str
    cluster: str
    instance: ContainerInstance
    definition_arn: str
    definition: Mapping[str, Any]
    gpus: list[str]
    started_by: str
    tags: Sequence[Mapping[str, str]]
    created: float
    last: str = PENDING
    desired: str = RUNNING
    reason: str = ""
    code: str = ""
    started: float | None = None
    stopped: float | None = None
    sent: bool = False
    results: dict[str, dict[str, Any]] = field(default_factory=dict)

    def describe(self) -> dict[str, Any]:
        """As DescribeTasks answers."""
        times = {"startedAt": self.started, "stoppedAt": self.stopped}
        texts = {"stoppedReason": self.reason, "stopCode": self.code, "startedBy": self.started_by}
        return {
            "taskArn": self.arn, "clusterArn": self.instance.arn.replace(":container-instance/", ":cluster/")
            .rpartition("/")[0], "containerInstanceArn": self.instance.arn, "taskDefinitionArn": self.definition_arn,
            "lastStatus": self.last, "desiredStatus": self.desired, "launchType": "EC2", "createdAt": self.created,
            "tags": [dict(row) for row in self.tags],
            "containers": [self._container(row) for row in self.definition["containerDefinitions"]],
            **{key: value for key, value in {**times, **texts}.items() if value},
        }  # fmt: skip

    def _container(self, row: Mapping[str, Any]) -> dict[str, Any]:
        gpus = {"gpuIds": list(self.gpus)} if self.gpus else {}
        known = self.results.get(str(row["name"]), {})
        return {
            "name": row["name"],
            "taskArn": self.arn,
            "image": row["image"],
            "lastStatus": self.last,
            **gpus,
            **known,
        }

    def message(self) -> dict[str, Any]:
        """What the agent of the instance gets."""
        return {
            "taskArn": self.arn, "desiredStatus": self.desired, "gpuIds": list(self.gpus),
            "containers": list(self.definition["containerDefinitions"]), "volumes": list(self.definition["volumes"]),
            "networkMode": self.definition["networkMode"], "family": self.definition["family"],
            "revision": self.definition["revision"],
        }  # fmt: skip

    def change(self, status: str, containers: Sequence[Mapping[str, Any]], reason: str, now: float) -> None:
        """What the agent says. Refused: it says something of a task that has stopped."""
        if self.last == STOPPED:
            raise Refused("ClientException", f"{self.arn} has stopped")
        for row in containers:
            kept = {key: row[key] for key in ("exitCode", "reason") if row.get(key) is not None}
            self.results[str(row["containerName"])] = kept
        self.last = status
        if status == RUNNING:
            self.started = now
        if status == STOPPED:
            self.desired, self.stopped = STOPPED, now
            self.reason = self.reason or reason or "Essential container in task exited"
            self.code = self.code or ("TaskFailedToStart" if self.started is None else "EssentialContainerExited")

    def stop(self, reason: str, code: str) -> None:
        """Asks the agent to stop it."""
        self.desired, self.reason, self.code, self.sent = STOPPED, self.reason or reason, self.code or code, False


def new_arn(instance: ContainerInstance) -> str:
    prefix = instance.arn.replace(":container-instance/", ":task/").rpartition("/")[0]
    return f"{prefix}/{uuid.uuid4().hex}"
