"""Checks of an ECS image as a container instance, on a scripted service: green, and red with each message."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from tests.scripted_host import table_host
from tests.validator.checks.conftest import PLAN, FakeMachine, Judge
from tests.validator.probes.test_compute import MACHINE, WRONG, gpu
from validator.checks import node_in_ecs as checks
from validator.checks.node_in_ecs import ContainerInstance, Registered, Task, Tasks
from validator.cloudwatch import ApiRefused
from validator.plan import as_plan
from validator.probes.cluster.joined import Joined
from validator.probes.cluster.nodes import Node

(ROW,) = PLAN["instance_types"]
RUN = "20261125-000000-abcdef"
UUIDS = ["00000000-1", "00000001-1"]
GPUS = [f"GPU-{uuid}" for uuid in UUIDS]
INSTANCE = ContainerInstance("arn:1", "ACTIVE", True, tuple(GPUS), "1.100.1", "25")
FILE = Joined("ecs", (Node("i-1", "u"),), cluster="gpu-nodes", run=RUN, run_tags={"gpu-ami:run": RUN})
NO_RUNTIME = "CannotStartContainerError: unknown runtime"
DONE = Task("arn:task", "STOPPED", 0, tuple(GPUS))
FAILED = replace(DONE, exit_code=1)
HOST = {
    "python3 -IS*": '{"error": "", "python": "/usr/bin/python3.9"}',
    "mkdir*": "",
    "docker*": "",
    "rm -rf*": "",
    "nvidia-container-runtime --version": "NVIDIA Container Runtime version 1.17.8\ncommit: abcdef\n",
    "cat /etc/nvidia-container-runtime/config.toml": "",
}
# In mode auto a toolkit before 1.18 is in mode legacy for GPUs by their UUIDs, and the replica has no such mode.
LEGACY = {"nvidia-container-runtime --version": "NVIDIA Container Runtime version 1.17.8\ncommit: replica\n"}


class Service:
    """A cluster that answers as told, and remembers what was made and removed."""

    def __init__(self, start: Task = DONE, end: Task = DONE) -> None:
        self.first, self.last = start, end
        self.defined, self.removed, self.stopped = list[Any](), list[str](), list[str]()

    def define(self, run: str, tags: Any, container: Any, folder: str) -> str:
        self.defined.append((run, tags, container, folder))
        return f"arn:definition:{len(self.defined)}"

    def start(self, *_: Any) -> Task:
        return self.first

    def ended(self, *_: Any) -> Task:
        return self.last

    def task(self, _arn: str) -> Task:
        return self.last

    def stop(self, arn: str) -> None:
        self.stopped.append(arn)

    def remove_definition(self, arn: str) -> None:
        self.removed.append(arn)
        raise ApiRefused("ecs:DeleteTaskDefinitions", "AccessDeniedException", "no", "")


def plan(gpus: int = 2) -> Any:
    sections = {"node_ecs": {"version": "", "accelerator": "nvidia"}, "instance_types": [ROW | {"gpu_count": gpus}]}
    return as_plan(PLAN | sections)


def written(*rows: dict[str, Any], **machine: Any) -> str:
    """What the task leaves on the host."""
    lines = "".join(json.dumps(row) + "\n" for row in (MACHINE | machine, *(rows or (gpu(0), gpu(1)))))
    return json.dumps({"printed": lines, "errors": ""})


def registered(instance: ContainerInstance | None = INSTANCE, why: str = "", service: Any = None) -> Registered:
    return Registered(FILE, service or Service(), instance, why)


def tasks(result: str = written(), service: Service | None = None, **host: Any) -> Tasks:
    table = {"cat -- /var/tmp/gpu-ami-task-*": result, **HOST, **host}
    made = Tasks(table_host(table), registered(service=service))
    made.make()
    return made


@pytest.mark.parametrize(
    ("made", "verdict", "message"),
    [
        (registered(), "PASS", ""),
        (registered(None, "not registered in gpu-nodes"), "FAIL", "not registered in gpu-nodes (after 300 s)"),
        (registered(replace(INSTANCE, status="DRAINING")), "FAIL", "expected ACTIVE, got DRAINING"),
        (replace(registered(), active=2), "FAIL", "2 ACTIVE container instances of this machine: its agent has lost"),
        (replace(registered(), lost=("i-2",)), "FAIL", "not connected to gpu-nodes within 300 s: i-2"),
    ],
)
def test_agent(judge: Judge, made: Registered, verdict: str, message: str) -> None:
    judged = judge(checks.test_agent_connects_to_the_cluster, {}, registered=made)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("made", "verdict", "message"),
    [
        (registered(), "PASS", ""),
        (registered(replace(INSTANCE, gpus=(GPUS[0],))), "FAIL", f"expected 2 GPUs, got 1; not registered: {GPUS[1]}"),
        (registered(replace(INSTANCE, gpus=())), "FAIL", f"got 0; not registered: {GPUS[0]}, {GPUS[1]}"),
        (
            registered(replace(INSTANCE, gpus=(*GPUS, "GPU-x"))),
            "FAIL",
            "got 3; registered, and not on this machine: GPU-x",
        ),
        (registered(None, "its agent is not connected"), "UNPROVEN", "no container instance: its agent is not"),
    ],
)
def test_gpus(judge: Judge, made: Registered, verdict: str, message: str) -> None:
    judged = judge(checks.test_agent_registers_every_gpu, {}, registered=made, uuids=GPUS)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("made", "verdict", "message"),
    [
        (tasks(), "PASS", ""),
        (tasks(service=Service(Task(refused="RESOURCE:GPU"))), "FAIL", "start a task with 2 GPUs here: RESOURCE:GPU"),
        # An agent that has registered, and then flaps: it is away whenever a task is to start.
        (tasks(service=Service(Task(refused="AGENT"))), "FAIL", "start a task with 2 GPUs here: AGENT"),
        (tasks(service=Service(end=replace(DONE, status="PENDING"))), "FAIL", "the task is PENDING after 600 s"),
        (tasks(service=Service(end=Task("arn:task"))), "FAIL", "the task is gone after 600 s"),
        (
            tasks(service=Service(end=Task("arn:task", "STOPPED", reason=NO_RUNTIME))),
            "FAIL",
            f"the task did not run: {NO_RUNTIME}",
        ),
        (tasks(service=Service(end=replace(DONE, exit_code=1))), "FAIL", "exit code 1"),
        (tasks(written(gpu(0, wrong=WRONG), gpu(1)), Service(end=FAILED)), "FAIL", "exit code 1: GPU 0"),
        (tasks(written(gpu(0))), "FAIL", f"exit code 0: expected 2 GPUs ({', '.join(UUIDS)}), got 1"),
        (tasks("{}"), "FAIL", "exit code 0: the task wrote no result"),
        (tasks(service=Service(end=FAILED), **LEGACY), "UNPROVEN", "GPUs in mode legacy (mode auto of release 1.17)"),
        (tasks(**LEGACY), "UNPROVEN", "replica has modes cdi and jit-cdi alone"),
        (
            tasks(**{"python3 -IS*": '{"error": "docker import: no space left"}'}),
            "UNPROVEN",
            "no image for a task: docker import: no space left",
        ),
        (tasks(**{"python3 -IS*": (1, "", "no python")}), "UNPROVEN", "exit status 1: no python"),
    ],
)  # fmt: skip
def test_task(judge: Judge, made: Tasks, verdict: str, message: str) -> None:
    judged = judge(checks.test_a_task_on_all_gpus_computes_on_each, {}, tasks=made, uuids=GPUS)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


def test_a_task_has_no_registry_no_network_and_its_run_s_name(judge: Judge) -> None:
    service = Service()
    made = tasks(service=service)
    judge(checks.test_a_task_on_all_gpus_computes_on_each, {}, tasks=made, uuids=GPUS)
    ((run, tags, container, folder),) = service.defined
    assert (run, tags, folder) == (RUN, {"gpu-ami:run": RUN}, f"/var/tmp/gpu-ami-task-{RUN}")
    assert container["image"] == f"localhost:1/gpu-ami/compute-probe:{RUN}"
    assert container["resourceRequirements"] == [{"type": "GPU", "value": "2"}]
    assert container["command"][:3] == ["/usr/bin/python3.9", "-IS", "/probe/task.py"]
    assert container["mountPoints"] == [{"sourceVolume": "result", "containerPath": "/result"}]


@pytest.mark.parametrize(
    ("first", "verdict", "message"),
    [
        (Task(refused="RESOURCE:GPU"), "PASS", ""),
        (DONE, "FAIL", "a task with 3 GPUs: expected RESOURCE:GPU, got it was started (arn:task)"),
        (Task(refused="AGENT"), "FAIL", "expected RESOURCE:GPU, got AGENT"),
    ],
)
def test_one_gpu_more(judge: Judge, first: Task, verdict: str, message: str) -> None:
    made = tasks(service=Service(first))
    judged = judge(checks.test_a_task_for_one_gpu_more_is_refused, {}, tasks=made, uuids=GPUS)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


def test_what_tasks_made_is_removed() -> None:
    """Also where ECS refuses a part of it: `gpu-ami` removes the definitions by their name."""
    service = Service(end=replace(DONE, status="RUNNING"))
    ran = list[str]()

    def answer(command: str) -> str:
        ran.append(command)
        return ""

    made = tasks(service=service, **{"docker*": answer, "rm -rf*": answer})
    made.start(2)
    made.remove()
    assert (service.stopped, service.removed) == (["arn:task"], ["arn:definition:1"])
    assert f"com.amazonaws.ecs.task-definition-family=gpu-ami-{RUN}" in ran[0] and "rm --force" in ran[0]
    assert ran[1:] == [
        f"docker image rm --force localhost:1/gpu-ami/compute-probe:{RUN}", f"rm -rf -- /var/tmp/gpu-ami-task-{RUN}",
    ]  # fmt: skip


class Waits:
    """CloudWatch's client, whose waits end at once; ECS has these registrations."""

    def __init__(self, *rows: ContainerInstance) -> None:
        self.rows = rows

    def client(self, _service: str) -> Any:
        return None

    def wait(self, look: Callable[[], Any], _seconds: float) -> Any:
        return look()


@pytest.mark.parametrize(
    ("rows", "host", "why"),
    [
        ((INSTANCE,), {}, ""),
        ((), {"cat*": "gpu-nodes\n", "grep*": ""}, "not registered in gpu-nodes; no error in /var/log/ecs"),
        (
            (),
            {"cat*": "other\n", "grep*": "level=error ClusterNotFoundException\n"},
            "not registered in gpu-nodes; ECS_CLUSTER of its agent is other; level=error ClusterNotFoundException",
        ),
        ((), {"cat*": "", "grep*": ""}, "ECS_CLUSTER of its agent is default"),
        ((replace(INSTANCE, connected=False),), {"cat*": "gpu-nodes\n", "grep*": ""}, "its agent is not connected"),
    ],
)  # fmt: skip
def test_a_machine_that_does_not_come_says_why(
    monkeypatch: pytest.MonkeyPatch, rows: Any, host: dict[str, Any], why: str
) -> None:
    monkeypatch.setattr(checks.ContainerService, "instances", lambda self, _id: list(self.cloudwatch.rows))
    fixture = checks.registered.__wrapped__  # type: ignore[attr-defined]
    found = fixture(FILE, Waits(*rows), table_host(host), FakeMachine({"instance-id": "i-1"}))
    assert (found.instance is None) == bool(why) and why in found.why, found


def test_every_registration_and_machine_counts(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = {"i-1": [INSTANCE, replace(INSTANCE, arn="arn:0", connected=False)], "i-2": [INSTANCE], "i-3": []}
    monkeypatch.setattr(checks.ContainerService, "instances", lambda _, name: rows[name])
    file = replace(FILE, nodes=tuple(Node(name, "u") for name in rows))
    fixture = checks.registered.__wrapped__  # type: ignore[attr-defined]
    found = fixture(file, Waits(), table_host({}), SimpleNamespace(instance_id="i-1"))
    assert (found.active, found.lost) == (2, ("i-3",))


@pytest.mark.parametrize(
    ("gpus", "host", "expected"),
    [
        (2, {"nvidia-smi*": "".join(f"{uuid}\n" for uuid in GPUS)}, GPUS),
        (0, {}, "has no NVIDIA GPU"),
        (2, {"nvidia-smi*": (9, "NVIDIA-SMI has failed")}, "nvidia-smi does not answer"),
    ],
)
def test_gpus_are_those_of_nvidia_smi(gpus: int, host: dict[str, Any], expected: Any) -> None:
    fixture = checks.uuids.__wrapped__  # type: ignore[attr-defined]
    machine = SimpleNamespace(instance_type=ROW["name"])
    if isinstance(expected, list):
        assert fixture(table_host(host), plan(gpus), machine) == expected
        return
    with pytest.raises(pytest.skip.Exception, match=expected):
        fixture(table_host(host), plan(gpus), machine)
