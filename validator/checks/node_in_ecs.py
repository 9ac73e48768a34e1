"""An ECS image as a container instance of a cluster (tier TN): its agent, its GPUs, and tasks on all of them.

They run with `--join` alone, and again after a restart. Of several machines the first one runs the tasks; the agents of
all are connected. The image of the tasks is made on the machine, of its own files: no registry is needed.

The checks call ECS only here. A refused call raises ApiRefused, as one of CloudWatch does: it says nothing about the
image. What these calls make has the id of the run in its name and the tags of the run.
"""

from __future__ import annotations

import contextlib
import functools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import pytest

from validator.cloudwatch import ApiRefused, CloudWatch
from validator.observe import Observe, output, unproven
from validator.plan import planned_instance_type
from validator.plan_document import PlanDocument
from validator.probes import MachineUnderTest, compute, containers
from validator.probes.cluster import joined

pytestmark = [pytest.mark.tier("TN"), pytest.mark.live, pytest.mark.planned("node_ecs"), pytest.mark.survives]
# The agent starts at the end of a boot, and this machine has booted; an agent that failed waits up to a minute or two.
CONNECT_SECONDS = 300.0
TASK_SECONDS = 600.0
_MIB = 16  # on each GPU
_COMPUTE_SECONDS = 240
_MEMORY_MIB = 256  # that ECS reserves for a task; it may use more
# No registry: the agent's pull fails at once, and it uses the image that is there (ECS_IMAGE_PULL_BEHAVIOR default).
_REGISTRY = "localhost:1"
_AGENT_LOG = "/var/log/ecs/ecs-agent.log"
_ERRORS = f"grep -hE 'level=(error|critical)' {_AGENT_LOG} /var/log/ecs/ecs-init.log 2>/dev/null | tail -n 3"
_CLUSTER = "cat /var/lib/ecs/ecs.config /etc/ecs/ecs.config 2>/dev/null | sed -n 's/^ECS_CLUSTER=//p' | tail -n 1"

ACTIVE, STOPPED = "ACTIVE", "STOPPED"
# The agent disconnects and reconnects several times an hour as a part of its normal operation (ECS developer guide,
# "Amazon ECS container instance state change events", read 2026-11-26); a task that is to start meanwhile is refused
# (treasure-data/digdag#1723, read 2026-11-25).
NOT_CONNECTED, RECONNECT_SECONDS = "AGENT", 90.0


@dataclass(frozen=True)
class Registered:
    """The machine's registration; None, with the reason, where there is none that ECS hears.

    active: how many ACTIVE registrations it has. lost: instances beside it of which ECS hears no agent.
    """

    cluster: joined.Joined
    service: ContainerService
    instance: ContainerInstance | None
    why: str = ""
    active: int = 1
    lost: tuple[str, ...] = ()

    def require(self) -> ContainerInstance:
        """UNPROVEN where there is none: the check of the agent has failed for that."""
        return self.instance or unproven(f"the machine is no container instance: {self.why}")


@pytest.fixture(scope="module")
def registered(cluster_file: joined.Joined, cloudwatch: CloudWatch, host: Any, machine: MachineUnderTest) -> Registered:
    """The machine's registration, once ECS hears its agent."""
    service = ContainerService(cloudwatch, cluster_file.cluster)
    seen = list[ContainerInstance]()

    def look() -> ContainerInstance | None:
        seen[:] = service.instances(machine.instance_id)
        return next((row for row in seen if row.connected), None)

    found = cloudwatch.wait(look, CONNECT_SECONDS)
    if found is not None:
        active = sum(row.status == ACTIVE for row in seen)
        return Registered(cluster_file, service, found, "", active, _lost(cluster_file, service))
    named = host.run(_CLUSTER).stdout.strip() or "default"
    why = f"not registered in {cluster_file.cluster}" if not seen else "registered, but its agent is not connected"
    if named != cluster_file.cluster:
        why += f"; ECS_CLUSTER of its agent is {named}"
    said = host.run(_ERRORS).stdout.strip()
    return Registered(cluster_file, service, None, f"{why}; {said or f'no error in {_AGENT_LOG}'}")


def _lost(cluster: joined.Joined, service: ContainerService) -> tuple[str, ...]:
    """The machines beside the first one of which ECS hears no agent, as soon as it hears all, or after that time."""
    silent = list(cluster.others)

    def look() -> bool | None:
        silent[:] = [name for name in silent if not any(row.connected for row in service.instances(name))]
        return None if silent else True

    service.cloudwatch.wait(look, CONNECT_SECONDS)
    return tuple(silent)


@pytest.fixture(scope="module")
def uuids(host: Any, plan: PlanDocument, machine: MachineUnderTest) -> list[str]:
    """UUIDs of the machine's GPUs, as nvidia-smi lists them, by index."""
    if not planned_instance_type(plan, machine.instance_type)["gpu_count"]:
        unproven(f"{machine.instance_type} has no NVIDIA GPU")
    listed = host.run("nvidia-smi --query-gpu=uuid --format=csv,noheader")
    found = [line.strip() for line in listed.stdout.splitlines() if line.startswith("GPU-")]
    if listed.rc != 0 or not found:
        unproven("nvidia-smi does not answer: see nvidia_driver::test_every_promised_gpu_is_there")
    return found


@dataclass
class Tasks:
    """Tasks of one container, with the machine's own Python and the compute probe as its image."""

    host: Any
    registered: Registered
    image: str = ""
    python: str = ""
    folder: str = ""
    why: str = ""  # why there is no image
    definitions: list[str] = field(default_factory=list)
    started: list[str] = field(default_factory=list)

    def make(self) -> None:
        run = self.registered.cluster.run
        self.image = f"{_REGISTRY}/gpu-ami/compute-probe:{run}"
        self.folder = f"/var/tmp/gpu-ami-task-{run}"
        try:
            self.python = containers.make_image(self.host, self.image)
        except containers.Unanswered as error:
            self.why = str(error)
            return
        output(self.host, "mkdir -p -- %s", self.folder)

    def start(self, gpus: int) -> Task:
        """Starts a task with so many GPUs. UNPROVEN without an image; ApiRefused."""
        instance, cluster, service = self.registered.require(), self.registered.cluster, self.registered.service
        if self.why:
            unproven(f"no image for a task: {self.why}")
        words = ["--mib", f"{_MIB}", "--seconds", f"{_COMPUTE_SECONDS}"]
        container = {
            "name": "compute-probe",
            "image": self.image,
            "essential": True,
            "memoryReservation": _MEMORY_MIB,
            "resourceRequirements": [{"type": "GPU", "value": f"{gpus}"}],
            "command": [self.python, "-IS", "/probe/task.py", *words],
            "mountPoints": [{"sourceVolume": "result", "containerPath": "/result"}],
        }
        self.definitions.append(service.define(cluster.run, cluster.run_tags, container, self.folder))
        task = service.start(self.definitions[-1], instance.arn, cluster.run, cluster.run_tags)
        self.started += [task.arn] if task.arn else []
        return task

    def result(self) -> compute.Compute:
        """What the probe in the container has written. compute.Unanswered: nothing, or no result."""
        done = self.host.run("cat -- %s/result.json", self.folder)
        try:
            written = json.loads(done.stdout)
            return compute.read(written["printed"], written["errors"])
        except (ValueError, LookupError, TypeError) as error:
            text = f"the task wrote no result: {done.stderr.strip() or error}"
            raise compute.Unanswered(text) from error

    def remove(self) -> None:
        """Ends and removes what these tasks have made, in ECS and on the machine."""
        service = self.registered.service
        for arn in self.started:
            with contextlib.suppress(ApiRefused):
                if service.task(arn).status != STOPPED:
                    service.stop(arn)
                    service.ended(arn, 60)
        for arn in self.definitions:
            with contextlib.suppress(ApiRefused):  # `gpu-ami` and its sweep remove it by its name
                service.remove_definition(arn)
        label = f"label=com.amazonaws.ecs.task-definition-family={family(self.registered.cluster.run)}"
        self.host.run("docker ps --all --quiet --filter %s | xargs --no-run-if-empty docker rm --force", label)
        self.host.run("docker image rm --force %s", self.image)
        self.host.run("rm -rf -- %s", self.folder)


@pytest.fixture(scope="module")
def tasks(host: Any, registered: Registered) -> Iterator[Tasks]:
    """Tasks on this machine; what they made is removed after the last check."""
    made = Tasks(host, registered)
    registered.require()
    try:
        made.make()
        yield made
    finally:
        made.remove()


def test_agent_connects_to_the_cluster(registered: Registered, observe: Observe) -> None:
    """The agent has registered each machine as one container instance, which is ACTIVE, and ECS hears the agent."""
    instance, cluster = registered.instance, registered.cluster.cluster
    observe(vars(instance) if instance else registered.why, f"{ACTIVE} and connected in {cluster}")
    if instance is None:
        observe.fail(f"{registered.why} (after {CONNECT_SECONDS:.0f} s)")
    if instance.status != ACTIVE:
        observe.fail(f"status of the container instance: expected {ACTIVE}, got {instance.status}")
    if registered.active != 1:
        observe.fail(
            f"{registered.active} {ACTIVE} container instances of this machine: its agent has lost its state"
            " (/var/lib/ecs/data), and has registered once more"
        )
    if registered.lost:
        observe.fail(f"not connected to {cluster} within {CONNECT_SECONDS:.0f} s: {', '.join(registered.lost)}")


@pytest.mark.needs("observed")
def test_agent_registers_every_gpu(registered: Registered, uuids: list[str], observe: Observe) -> None:
    """The GPUs of the container instance are those that nvidia-smi lists. ECS places no task on another one."""
    gpus = registered.require().gpus
    observe(sorted(gpus), sorted(uuids))
    missing, strange = sorted(set(uuids) - set(gpus)), sorted(set(gpus) - set(uuids))
    if missing or strange:
        parts = [f"not registered: {', '.join(missing)}"] if missing else []
        parts += [f"registered, and not on this machine: {', '.join(strange)}"] if strange else []
        observe.fail(f"expected {len(uuids)} GPUs, got {len(gpus)}; {'; '.join(parts)}")


@pytest.mark.needs("observed")
def test_a_task_on_all_gpus_computes_on_each(tasks: Tasks, uuids: list[str], observe: Observe) -> None:
    """A task that requests all GPUs starts here, computes correctly on each, and ends with exit code 0."""
    # The agent names GPUs by their UUIDs in NVIDIA_VISIBLE_DEVICES (amazon-ecs-agent, agent/api/task/task.go).
    if why := containers.runtime(tasks.host).not_simulated(qualified=False):
        unproven(why)
    task = tasks.start(len(uuids))
    if task.refused:
        observe.fail(f"ECS does not start a task with {len(uuids)} GPUs here: {task.refused}")
    task = tasks.registered.service.ended(task.arn, TASK_SECONDS)
    observe({"status": task.status, "exit code": task.exit_code, "GPUs": list(task.gpus)}, "exit code 0")
    if task.status != STOPPED:
        observe.fail(f"the task is {task.status or 'gone'} after {TASK_SECONDS:.0f} s")
    if task.exit_code is None:
        observe.fail(f"the task did not run: {task.reason or 'ECS does not say why'}")
    try:
        fault = containers.defect(tasks.result(), [uuid.removeprefix("GPU-") for uuid in uuids])
    except compute.Unanswered as error:
        fault = str(error)
    if fault or task.exit_code:
        observe.fail(f"exit code {task.exit_code}: {fault or task.reason}")


@pytest.mark.needs("observed")
def test_a_task_for_one_gpu_more_is_refused(tasks: Tasks, uuids: list[str], observe: Observe) -> None:
    """ECS refuses a task for one GPU more than the machine has; else the agent has registered GPUs that it lacks."""
    task = tasks.start(len(uuids) + 1)
    observe(task.refused or "started", "RESOURCE:GPU")
    if task.refused != "RESOURCE:GPU":
        got = task.refused or f"it was started ({task.arn})"
        observe.fail(f"a task with {len(uuids) + 1} GPUs: expected RESOURCE:GPU, got {got}")


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
        return [read_instance(row) for row in rows]

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
            last = read_started(start())
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


def read_instance(row: Mapping[str, Any]) -> ContainerInstance:
    """Of DescribeContainerInstances."""
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


def read_started(answer: Mapping[str, Any]) -> Task:
    """Of StartTask."""
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
