"""Container instances: what an agent has registered, and what is left of it beside the tasks that run there.

Tasks: what runs on one container instance, and what its agent says became of it.
"""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localregion.backends import Refused

# An agent that has not asked for so long is not connected.
SILENT_SECONDS = 15.0
ACTIVE, DRAINING, INACTIVE = "ACTIVE", "DRAINING", "INACTIVE"
_SUMMED, _LISTED = ("INTEGER", "LONG", "DOUBLE"), "STRINGSET"
_VALUE = {"INTEGER": "integerValue", "LONG": "longValue", "DOUBLE": "doubleValue"}
_EXISTS = re.compile(r"attribute:(?P<name>[\w./-]+) exists")
_IS = re.compile(r"(?P<field>ec2InstanceId|attribute:[\w./-]+) == (?P<value>\S+)")


@dataclass
class ContainerInstance:
    """One registration. resources: as registered, by name; used: amount of each, or members of a string set."""

    arn: str
    cluster: str
    ec2_instance_id: str
    resources: Mapping[str, Mapping[str, Any]]
    attributes: list[Mapping[str, str]]
    agent: Mapping[str, str]
    last_asked: float
    registered: float = field(default_factory=time.time)
    status: str = ACTIVE
    used: dict[str, Any] = field(default_factory=dict)

    def lacks(self, needs: Mapping[str, float]) -> str:
        """The resource that this one has too little of for a task; "" for none."""
        for name, amount in needs.items():
            if amount > self.left(name):
                return name
        return ""

    def left(self, name: str) -> float:
        row = self.resources.get(name)
        if row is None:
            return 0
        if row["type"] == _LISTED:
            return len(self._members(name))
        return float(row[_VALUE[row["type"]]]) - float(self.used.get(name, 0))

    def _members(self, name: str) -> list[str]:
        """The members of a string set that no task has."""
        return [each for each in self.resources[name]["stringSetValue"] if each not in self.used.get(name, [])]

    def take(self, needs: Mapping[str, float]) -> list[str]:
        """Takes what a task needs; the GPUs of it."""
        gpus: list[str] = []
        for name, amount in needs.items():
            if self.resources[name]["type"] == _LISTED:
                gpus = self._members(name)[: int(amount)]
                self.used[name] = [*self.used.get(name, []), *gpus]
            else:
                self.used[name] = self.used.get(name, 0) + amount
        return gpus

    def give_back(self, needs: Mapping[str, float], gpus: Iterable[str]) -> None:
        for name, amount in needs.items():
            if self.resources[name]["type"] == _LISTED:
                self.used[name] = [each for each in self.used.get(name, []) if each not in gpus]
            else:
                self.used[name] = self.used.get(name, 0) - amount

    def is_connected(self, now: float, silent: float) -> bool:
        return self.status != INACTIVE and now - self.last_asked < silent

    def describe(self, connected: bool, tasks: tuple[int, int]) -> dict[str, Any]:
        """As DescribeContainerInstances answers. tasks: running and pending ones."""
        return {
            "containerInstanceArn": self.arn, "ec2InstanceId": self.ec2_instance_id, "version": 1,
            "versionInfo": dict(self.agent), "status": self.status, "agentConnected": connected,
            "registeredResources": [dict(row) for row in self.resources.values()],
            "remainingResources": [self._remaining(name, row) for name, row in self.resources.items()],
            "runningTasksCount": tasks[0], "pendingTasksCount": tasks[1], "registeredAt": self.registered,
            "attributes": [dict(row) for row in self.attributes], "attachments": [], "tags": [],
        }  # fmt: skip

    def _remaining(self, name: str, row: Mapping[str, Any]) -> dict[str, Any]:
        if row["type"] == _LISTED:
            return {**row, "stringSetValue": self._members(name)}
        return {**row, _VALUE[row["type"]]: type(row[_VALUE[row["type"]]])(self.left(name))}

    def attribute(self, name: str) -> str | None:
        return next((row.get("value", "") for row in self.attributes if row["name"] == name), None)

    def is_selected(self, query: str) -> bool:
        """By a query of the cluster query language. Refused: the region does not know its form."""
        if not query:
            return True
        if match := _EXISTS.fullmatch(query):
            return self.attribute(match["name"]) is not None
        if match := _IS.fullmatch(query):
            name = match["field"].partition(":")[2]
            return (self.attribute(name) if name else self.ec2_instance_id) == match["value"]
        raise Refused("InvalidParameterException", f"the local region does not know the filter: {query}")


class ContainerInstances:
    """The container instances of the region, by ARN; a deregistered one stays, INACTIVE, as on AWS for a while."""

    def __init__(self, clock: Callable[[], float], silent_seconds: float, account: str, region: str) -> None:
        self._clock, self._silent = clock, silent_seconds
        self._prefix = f"arn:aws:ecs:{region}:{account}:container-instance"
        self.all: dict[str, ContainerInstance] = {}

    def register(self, cluster: str, ec2_instance_id: str, body: Mapping[str, Any]) -> ContainerInstance:
        """A new one, or that of the ARN in the call. Refused: that is of another instance or cluster, or INACTIVE."""
        resources = {str(row["name"]): dict(row) for row in body.get("totalResources", [])}
        attributes, agent = list(body.get("attributes", [])), dict(body.get("versionInfo", {}))
        arn = str(body.get("containerInstanceArn", ""))
        if arn:
            known = self.all.get(arn)
            if known is None or known.status == INACTIVE:
                raise Refused("ClientException", "Container instance is not registered, or is INACTIVE.")
            if known.ec2_instance_id != ec2_instance_id:
                raise Refused("InvalidParameterException", f"{arn} is of another EC2 instance.")
            if known.cluster != cluster:
                raise Refused("ClientException", f"{arn} is registered with another cluster.")
            known.resources, known.attributes, known.agent = resources, attributes, agent
            return known
        # An agent that has lost its state registers anew: the older registration is not connected any more.
        arn = f"{self._prefix}/{cluster}/{uuid.uuid4().hex}"
        self.all[arn] = ContainerInstance(arn, cluster, ec2_instance_id, resources, attributes, agent, self._clock())
        return self.all[arn]

    def find(self, cluster: str, name: str) -> ContainerInstance | None:
        """By its ARN or its id."""
        for arn, row in self.all.items():
            if row.cluster == cluster and name in (arn, arn.rpartition("/")[2]):
                return row
        return None

    def of_cluster(self, cluster: str) -> list[ContainerInstance]:
        return [row for row in self.all.values() if row.cluster == cluster and row.status != INACTIVE]

    def is_connected(self, row: ContainerInstance) -> bool:
        return row.is_connected(self._clock(), self._silent)

    def asked(self, row: ContainerInstance) -> None:
        row.last_asked = self._clock()


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
