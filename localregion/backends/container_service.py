"""Amazon ECS of the local region: container instances and tasks. Clusters and task definitions are moto's.

An instance's agent (localregion/replicas/ecs_ami) registers it, asks for what it has to run, and sends what became
of it. moto 5.2 has no DiscoverPollEndpoint, drops the resources and attributes of a container instance, and its tasks
run at once and have no exit code.

Source: the description of the API in botocore (RegisterContainerInstance, ContainerInstance, StartTask, Task, Failure,
StopTask, SubmitTaskStateChange, DeleteCluster), read 2026-11-25. The pages of the ECS developer guide that it refers to
("API failure reasons", "Cluster query language") were not read in full, and nothing was compared with AWS: the reasons
INACTIVE and RESOURCE:GPU are assumed; AGENT is from treasure-data/digdag#1723. AWS's agent gets its tasks over a
WebSocket of the endpoint that DiscoverPollEndpoint names (Agent Communication Service, permission ecs:Poll); here it
asks with an action ecs:Poll at the same endpoint as all others.

`ContainerService.answer` takes the JSON of a call and returns that of its answer; None for moto's actions.
"""

from __future__ import annotations

import re
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from localregion.backends import REGION, Ec2, Refused, calling_instance

Body = Mapping[str, Any]
_POLL_SECONDS = 5.0  # how long Poll waits for something to do
_PAGE = 100
# An agent that has not asked for so long is not connected.
SILENT_SECONDS = 15.0
ACTIVE, DRAINING, INACTIVE = "ACTIVE", "DRAINING", "INACTIVE"
_SUMMED, _LISTED = ("INTEGER", "LONG", "DOUBLE"), "STRINGSET"
_VALUE = {"INTEGER": "integerValue", "LONG": "longValue", "DOUBLE": "doubleValue"}
_EXISTS = re.compile(r"attribute:(?P<name>[\w./-]+) exists")
_IS = re.compile(r"(?P<field>ec2InstanceId|attribute:[\w./-]+) == (?P<value>\S+)")


class ContainerService:
    """ECS of one region."""

    services = ("ecs",)  # names in the signatures of its calls

    def __init__(
        self,
        ec2: Ec2,
        clock: Callable[[], float] = time.time,
        silent_seconds: float = SILENT_SECONDS,
        poll_seconds: float = _POLL_SECONDS,
        endpoint: str = "",
    ) -> None:
        """endpoint: where an instance reaches the API."""
        self._ec2, self._clock, self._poll_seconds, self._endpoint = ec2, clock, poll_seconds, endpoint
        self.instances = ContainerInstances(clock, silent_seconds, ec2.account, REGION)
        self.tasks: dict[str, Task] = {}
        self._changed = threading.Condition()
        self._actions: Mapping[str, Callable[[Body], dict[str, Any]]] = {
            "ecs:DeregisterContainerInstance": self._deregister,
            "ecs:DescribeContainerInstances": self._describe_instances,
            "ecs:ListContainerInstances": self._list_instances,
            "ecs:UpdateContainerInstancesState": self._update_state,
            "ecs:StartTask": self._start_task,
            "ecs:StopTask": self._stop_task,
            "ecs:DescribeTasks": self._describe_tasks,
            "ecs:ListTasks": self._list_tasks,
            "ecs:ListTaskDefinitionFamilies": self._list_families,
        }
        self._of_agents: Mapping[str, Callable[[str, Body], dict[str, Any]]] = {
            "ecs:DiscoverPollEndpoint": self._discover,
            "ecs:RegisterContainerInstance": self._register,
            "ecs:Poll": self._poll,
            "ecs:SubmitTaskStateChange": self._submit,
        }

    def answer(self, name: str, body: Body, access_key: str) -> dict[str, Any] | None:
        """The answer to `ecs:ACTION`; None for moto's actions. Refused."""
        if of_agent := self._of_agents.get(name):
            return of_agent(calling_instance(name, access_key), body)
        with self._changed:
            self._advance()
            if name == "ecs:DeleteCluster":
                self._refuse_delete(body)
            if action := self._actions.get(name):
                return action(body)
        return None

    def _moto(self) -> Any:
        from moto.ecs.models import ecs_backends

        return ecs_backends[self._ec2.account][REGION]

    def _cluster(self, body: Body) -> str:
        """The name of the call's cluster. Refused: there is none of that name."""
        name = str(body.get("cluster") or "default").rpartition("/")[2]
        cluster = self._moto().clusters.get(name)
        if cluster is None or cluster.status != "ACTIVE":
            raise Refused("ClusterNotFoundException", "Cluster not found.")
        return name

    def _advance(self) -> None:
        """A terminated EC2 instance is deregistered by ECS itself, if its agent was connected."""
        for row in self.instances.all.values():
            instance = self._ec2.instance(row.ec2_instance_id)
            if row.status != INACTIVE and (instance is None or instance.state == "terminated"):
                self._end(row)

    def _end(self, row: ContainerInstance) -> None:
        row.status = INACTIVE
        for task in self.tasks.values():
            if task.instance is row and task.last != STOPPED:
                task.reason, task.code = "Host EC2 terminated or deregistered", "TerminationNotice"
                task.change(STOPPED, [], "", self._clock())
                row.give_back(needs(task.definition), task.gpus)
        self._changed.notify_all()

    def _refuse_delete(self, body: Body) -> None:
        if self.instances.of_cluster(self._cluster(body)):
            message = "The Cluster cannot be deleted while Container Instances are active or draining."
            raise Refused("ClusterContainsContainerInstancesException", message)

    # Container instances

    def _instance(self, body: Body) -> ContainerInstance:
        found = self.instances.find(self._cluster(body), str(body.get("containerInstance", "")))
        if found is None or found.status == INACTIVE:
            raise Refused("InvalidParameterException", "Referenced container instance not found.")
        return found

    def _describe(self, row: ContainerInstance) -> dict[str, Any]:
        states = [task.last for task in self.tasks.values() if task.instance is row]
        counts = (states.count(RUNNING), states.count(PENDING))
        return row.describe(self.instances.is_connected(row), counts)

    def _deregister(self, body: Body) -> dict[str, Any]:
        row = self._instance(body)
        running = [task for task in self.tasks.values() if task.instance is row and task.last != STOPPED]
        if running and not body.get("force"):
            raise Refused("InvalidParameterException", "Found running tasks on the instance.")
        self._end(row)
        return {"containerInstance": self._describe(row)}

    def _describe_instances(self, body: Body) -> dict[str, Any]:
        cluster, found, failures = self._cluster(body), [], []
        for name in body["containerInstances"]:
            row = self.instances.find(cluster, str(name))
            if row is None:
                failures.append({"arn": str(name), "reason": "MISSING"})
            else:
                found.append(self._describe(row))
        return {"containerInstances": found, "failures": failures}

    def _list_instances(self, body: Body) -> dict[str, Any]:
        rows = self.instances.of_cluster(self._cluster(body))
        status, query = body.get("status"), str(body.get("filter") or "")
        named = [row.arn for row in rows if status in (None, row.status) and row.is_selected(query)]
        return _page(named, body, "containerInstanceArns")

    def _update_state(self, body: Body) -> dict[str, Any]:
        cluster, changed = self._cluster(body), []
        for name in body["containerInstances"]:
            row = self.instances.find(cluster, str(name))
            if row is not None:
                row.status = str(body["status"])
                changed.append(self._describe(row))
        return {"containerInstances": changed, "failures": []}

    # Tasks

    def _start_task(self, body: Body) -> dict[str, Any]:
        cluster = self._cluster(body)
        definition = self._definition(str(body["taskDefinition"]))
        started, failures = [], []
        for name in body["containerInstances"]:
            row = self.instances.find(cluster, str(name))
            reason = self._refusal(row, needs(definition))
            if reason or row is None:
                failures.append({"arn": row.arn if row else str(name), "reason": reason})
                continue
            gpus = row.take(needs(definition))
            task = Task(
                new_arn(row), cluster, row, definition["taskDefinitionArn"], definition, gpus,
                str(body.get("startedBy", "")), body.get("tags", []), self._clock(),
            )  # fmt: skip
            self.tasks[task.arn] = task
            started.append(task.describe())
        self._changed.notify_all()
        return {"tasks": started, "failures": failures}

    def _refusal(self, row: ContainerInstance | None, needs: Mapping[str, float]) -> str:
        """Why no task is placed there, in the words of ECS (sources: the package's docstring); "" where one is."""
        if row is None:
            return "MISSING"
        if row.status in (INACTIVE, DRAINING):
            return "INACTIVE"
        if not self.instances.is_connected(row):
            return "AGENT"
        lacking = row.lacks(needs)
        return f"RESOURCE:{lacking}" if lacking else ""

    def _definition(self, name: str) -> dict[str, Any]:
        """Refused: there is none, or it is INACTIVE."""
        family, _, revision = name.rpartition("/")[2].partition(":")
        rows = self._moto().task_definitions.get(family, {})
        row = rows.get(int(revision) if revision else max(rows, default=0))
        if row is None or row.status != "ACTIVE":
            raise Refused(
                "ClientException", "TaskDefinition not found." if row is None else "TaskDefinition is inactive"
            )
        return {
            "taskDefinitionArn": row.arn, "family": row.family, "revision": row.revision, "cpu": row.cpu,
            "memory": row.memory, "networkMode": row.network_mode, "volumes": row.volumes,
            "containerDefinitions": row.container_definitions,
        }  # fmt: skip

    def _list_families(self, body: Body) -> dict[str, Any]:
        """Those that have a revision of the status; moto lists every family that ever was."""
        prefix, status = str(body.get("familyPrefix") or ""), str(body.get("status") or "ACTIVE")
        found = [
            family
            for family, rows in self._moto().task_definitions.items()
            if family.startswith(prefix) and any(status in ("ALL", row.status) for row in rows.values())
        ]
        return _page(sorted(found), body, "families")

    def _task(self, body: Body) -> Task:
        name = str(body.get("task", ""))
        found = next((row for arn, row in self.tasks.items() if name in (arn, arn.rpartition("/")[2])), None)
        if found is None or found.cluster != self._cluster(body):
            raise Refused("InvalidParameterException", "The referenced task was not found.")
        return found

    def _stop_task(self, body: Body) -> dict[str, Any]:
        task = self._task(body)
        if task.last != STOPPED:
            task.stop(str(body.get("reason") or "Task stopped by user"), "UserInitiated")
            self._changed.notify_all()
        return {"task": task.describe()}

    def _describe_tasks(self, body: Body) -> dict[str, Any]:
        found, failures = [], []
        for name in body["tasks"]:
            try:
                found.append(self._task({**body, "task": name}).describe())
            except Refused as refusal:
                if refusal.code == "ClusterNotFoundException":
                    raise
                failures.append({"arn": str(name), "reason": "MISSING"})
        return {"tasks": found, "failures": failures}

    def _list_tasks(self, body: Body) -> dict[str, Any]:
        cluster, desired = self._cluster(body), str(body.get("desiredStatus") or RUNNING)
        rows = [row for row in self.tasks.values() if row.cluster == cluster and row.desired == desired]
        if body.get("startedBy"):
            rows = [row for row in rows if row.started_by == body["startedBy"]]
        if body.get("containerInstance"):
            wanted = self._instance(body)
            rows = [row for row in rows if row.instance is wanted]
        return _page([row.arn for row in rows], body, "taskArns")

    # The agents' actions

    def _discover(self, _instance_id: str, body: Body) -> dict[str, Any]:
        self._cluster(body)
        return {"endpoint": self._endpoint, "telemetryEndpoint": self._endpoint}

    def _register(self, instance_id: str, body: Body) -> dict[str, Any]:
        with self._changed:
            row = self.instances.register(self._cluster(body), instance_id, body)
            return {"containerInstance": self._describe(row)}

    def _of_agent(self, instance_id: str, body: Body) -> ContainerInstance:
        row = self.instances.all.get(str(body.get("containerInstance", "")))
        if row is None or row.ec2_instance_id != instance_id:
            raise Refused("InvalidParameterException", "Referenced container instance not found.")
        if row.status == INACTIVE:
            raise Refused("InactiveInstanceException", "The container instance has been deregistered.")
        return row

    def _poll(self, instance_id: str, body: Body) -> dict[str, Any]:
        """The next tasks to start or to stop; none after a while of waiting."""
        ends = time.monotonic() + self._poll_seconds
        with self._changed:
            self.instances.asked(self._of_agent(instance_id, body))
            while True:
                row = self._of_agent(instance_id, body)
                due = [task for task in self.tasks.values() if task.instance is row and not task.sent]
                due = [task for task in due if task.last != STOPPED]
                left = ends - time.monotonic()
                if due or left <= 0:
                    for task in due:
                        task.sent = True
                    return {"tasks": [task.message() for task in due]}
                self._changed.wait(min(left, 1.0))

    def _submit(self, instance_id: str, body: Body) -> dict[str, Any]:
        with self._changed:
            task = self._task(body)
            if task.instance.ec2_instance_id != instance_id:
                raise Refused("InvalidParameterException", "The referenced task was not found.")
            task.change(str(body["status"]), body.get("containers", []), str(body.get("reason", "")), self._clock())
            if task.last == STOPPED:
                task.instance.give_back(needs(task.definition), task.gpus)
            self._changed.notify_all()
        return {"acknowledgment": "ACK"}


def _page(rows: list[str], body: Body, name: str) -> dict[str, Any]:
    """One page of a list; nextToken is where the next begins."""
    first = int(body.get("nextToken") or 0)
    end = first + int(body.get("maxResults") or _PAGE)
    return {name: rows[first:end], **({"nextToken": str(end)} if end < len(rows) else {})}


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
