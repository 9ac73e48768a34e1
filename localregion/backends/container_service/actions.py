"""The actions of ECS that the region answers itself: those of container instances and tasks, and of their agents.

`answer` takes the JSON of a call and returns that of its answer; None for moto's actions.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from localregion.backends import REGION, Ec2, Refused, calling_instance
from localregion.backends.container_service import instances
from localregion.backends.container_service.instances import (
    DRAINING,
    INACTIVE,
    SILENT_SECONDS,
    ContainerInstance,
    ContainerInstances,
)

Body = Mapping[str, Any]
_POLL_SECONDS = 5.0  # how long Poll waits for something to do
_PAGE = 100


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
        self.tasks: dict[str, instances.Task] = {}
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
            if task.instance is row and task.last != instances.STOPPED:
                task.reason, task.code = "Host EC2 terminated or deregistered", "TerminationNotice"
                task.change(instances.STOPPED, [], "", self._clock())
                row.give_back(instances.needs(task.definition), task.gpus)
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
        counts = (states.count(instances.RUNNING), states.count(instances.PENDING))
        return row.describe(self.instances.is_connected(row), counts)

    def _deregister(self, body: Body) -> dict[str, Any]:
        row = self._instance(body)
        running = [task for task in self.tasks.values() if task.instance is row and task.last != instances.STOPPED]
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
            reason = self._refusal(row, instances.needs(definition))
            if reason or row is None:
                failures.append({"arn": row.arn if row else str(name), "reason": reason})
                continue
            gpus = row.take(instances.needs(definition))
            task = instances.Task(
                instances.new_arn(row), cluster, row, definition["taskDefinitionArn"], definition, gpus,
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

    def _task(self, body: Body) -> instances.Task:
        name = str(body.get("task", ""))
        found = next((row for arn, row in self.tasks.items() if name in (arn, arn.rpartition("/")[2])), None)
        if found is None or found.cluster != self._cluster(body):
            raise Refused("InvalidParameterException", "The referenced task was not found.")
        return found

    def _stop_task(self, body: Body) -> dict[str, Any]:
        task = self._task(body)
        if task.last != instances.STOPPED:
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
        cluster, desired = self._cluster(body), str(body.get("desiredStatus") or instances.RUNNING)
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
                due = [task for task in due if task.last != instances.STOPPED]
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
            if task.last == instances.STOPPED:
                task.instance.give_back(instances.needs(task.definition), task.gpus)
            self._changed.notify_all()
        return {"acknowledgment": "ACK"}


def _page(rows: list[str], body: Body, name: str) -> dict[str, Any]:
    """One page of a list; nextToken is where the next begins."""
    first = int(body.get("nextToken") or 0)
    end = first + int(body.get("maxResults") or _PAGE)
    return {name: rows[first:end], **({"nextToken": str(end)} if end < len(rows) else {})}
