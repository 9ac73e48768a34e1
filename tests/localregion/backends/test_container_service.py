"""ECS of the region as boto3 sees it, with machines whose agent is the region's replica."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from localregion.backends import instance_access_key
from tests.localregion.api.test_layer import client, refused
from tests.localregion.conftest import SILENT_SECONDS, World
from tests.localregion.container_machines import GPUS, ContainerMachine
from tests.waiting import until

Start = Callable[..., ContainerMachine]
CLUSTER = "gpu-nodes"


@pytest.fixture
def ecs(endpoint: str) -> Any:
    made = client(endpoint, "ecs")
    made.create_cluster(clusterName=CLUSTER, tags=[{"key": "team", "value": "a"}])
    return made


@pytest.fixture
def start(world: World, endpoint: str, tmp_path: Path) -> Iterator[Start]:
    machines: list[ContainerMachine] = []

    def one(cluster: str = CLUSTER, **more: Any) -> ContainerMachine:
        instance = world.launch()
        machine = ContainerMachine(endpoint, instance.id, tmp_path / instance.id, cluster, **more)
        machines.append(machine)
        machine.start()
        return machine

    yield one
    for machine in machines:
        machine.close()


def instances(ecs: Any, query: str = "", cluster: str = CLUSTER) -> list[dict[str, Any]]:
    more = {"filter": query} if query else {}
    arns = ecs.list_container_instances(cluster=cluster, **more)["containerInstanceArns"]
    if not arns:
        return []
    return list(ecs.describe_container_instances(cluster=cluster, containerInstances=arns)["containerInstances"])


def connected(ecs: Any) -> dict[str, Any]:
    return dict(until(lambda: next((row for row in instances(ecs) if row["agentConnected"]), None)))


def define(ecs: Any, gpus: int, **more: Any) -> str:
    container = {
        "name": "c", "image": "localhost:1/x:1", "memoryReservation": 16, "command": ["/bin/probe", "--mib", "1"],
        "resourceRequirements": [{"type": "GPU", "value": str(gpus)}],
        "mountPoints": [{"sourceVolume": "result", "containerPath": "/result"}],
    }  # fmt: skip
    volumes = [{"name": "result", "host": {"sourcePath": "/var/tmp/x"}}]
    made = ecs.register_task_definition(
        family="f", networkMode="none", containerDefinitions=[container | more], volumes=volumes
    )
    return str(made["taskDefinition"]["taskDefinitionArn"])


def run(ecs: Any, instance: dict[str, Any], gpus: int) -> dict[str, Any]:
    return dict(
        ecs.start_task(
            cluster=CLUSTER, taskDefinition=define(ecs, gpus), startedBy="test",
            containerInstances=[instance["containerInstanceArn"]],
        )
    )  # fmt: skip


def task(ecs: Any, started: dict[str, Any]) -> dict[str, Any]:
    return dict(ecs.describe_tasks(cluster=CLUSTER, tasks=[started["tasks"][0]["taskArn"]])["tasks"][0])


def ended(ecs: Any, started: dict[str, Any]) -> dict[str, Any]:
    return dict(until(lambda: row if (row := task(ecs, started))["lastStatus"] == "STOPPED" else None))


def resource(row: dict[str, Any], name: str, which: str = "registeredResources") -> Any:
    return next((each["stringSetValue"] for each in row[which] if each["name"] == name), None)


def test_an_agent_registers_its_machine_with_its_gpus(ecs: Any, start: Start) -> None:
    machine = start()
    row = connected(ecs)
    assert (row["ec2InstanceId"], row["status"]) == (machine.instance_id, "ACTIVE")
    assert (
        resource(row, "GPU") == list(GPUS)
        and {"name": "gpu-ami.run", "value": "20261125-000000-abcdef"} in row["attributes"]
    )
    assert {each["name"] for each in row["registeredResources"]} == {"CPU", "MEMORY", "PORTS", "PORTS_UDP", "GPU"}
    assert json.loads(machine.read("var/lib/ecs/gpu/nvidia-gpu-info.json"))["GPUIDs"] == list(GPUS)
    kept = json.loads(machine.read("var/lib/ecs/data/agent.db"))
    assert (
        kept["ec2-instance-id"] == machine.instance_id and kept["container-instance-arn"] == row["containerInstanceArn"]
    )
    assert instances(ecs, f"ec2InstanceId == {machine.instance_id}") and not instances(ecs, "ec2InstanceId == i-0")
    assert instances(ecs, "attribute:gpu-ami.run exists") and not instances(ecs, "attribute:other exists")
    assert refused(ecs.list_container_instances, cluster=CLUSTER, filter="x =~ y")[0] == "InvalidParameterException"


def test_without_gpu_support_no_gpu_is_registered(ecs: Any, start: Start) -> None:
    machine = start()
    machine.stop()
    (machine.root / "var/lib/ecs/ecs.config").write_text("")
    machine.start()
    assert resource(until(lambda: next((r for r in instances(ecs) if not resource(r, "GPU")), None)), "GPU") is None


def test_a_task_runs_on_its_instance_and_reports_its_exit_code(ecs: Any, start: Start) -> None:
    machine = start()
    row = connected(ecs)
    started = run(ecs, row, 2)
    until(lambda: task(ecs, started)["lastStatus"] == "RUNNING")
    (busy,) = instances(ecs)
    assert busy["runningTasksCount"] == 1 and resource(busy, "GPU", "remainingResources") == []
    (machine.root / "ended").write_text("7\n")
    stopped = ended(ecs, started)
    (container,) = stopped["containers"]
    assert (container["exitCode"], container["gpuIds"]) == (7, list(GPUS))
    assert stopped["stoppedReason"] == "Essential container in task exited"
    words = next(line for line in machine.read("docker.log").splitlines() if line.startswith("create"))
    assert "--network none" in words and f"--runtime nvidia --env NVIDIA_VISIBLE_DEVICES={','.join(GPUS)}" in words
    assert "--volume /var/tmp/x:/result" in words and words.endswith("localhost:1/x:1 /bin/probe --mib 1")
    assert "com.amazonaws.ecs.task-definition-family=f" in words
    assert resource(instances(ecs)[0], "GPU", "remainingResources") == list(GPUS)


def test_what_is_not_placed_says_why(ecs: Any, start: Start, world: World) -> None:
    start()
    row = connected(ecs)
    assert run(ecs, row, 3)["failures"] == [{"arn": row["containerInstanceArn"], "reason": "RESOURCE:GPU"}]
    assert run(ecs, {"containerInstanceArn": "x"}, 1)["failures"] == [{"arn": "x", "reason": "MISSING"}]
    big = define(ecs, 1, memoryReservation=1 << 30)
    answer = ecs.start_task(cluster=CLUSTER, taskDefinition=big, containerInstances=[row["containerInstanceArn"]])
    assert answer["failures"][0]["reason"] == "RESOURCE:MEMORY"
    assert (
        refused(ecs.start_task, cluster=CLUSTER, taskDefinition="none", containerInstances=["x"])[0]
        == "ClientException"
    )
    assert refused(ecs.list_container_instances, cluster="none")[0] == "ClusterNotFoundException"


def test_an_image_that_is_nowhere_fails_the_task(ecs: Any, start: Start) -> None:
    machine = start()
    (machine.root / "image").unlink()
    stopped = ended(ecs, run(ecs, connected(ecs), 1))
    assert (
        "CannotPullContainerError" in stopped["containers"][0]["reason"] and stopped["stopCode"] == "TaskFailedToStart"
    )
    assert "exitCode" not in stopped["containers"][0]


def test_a_task_is_stopped(ecs: Any, start: Start) -> None:
    start()
    started = run(ecs, connected(ecs), 1)
    until(lambda: task(ecs, started)["lastStatus"] == "RUNNING")
    ecs.stop_task(cluster=CLUSTER, task=started["tasks"][0]["taskArn"], reason="enough")
    stopped = ended(ecs, started)
    assert (stopped["stoppedReason"], stopped["containers"][0]["exitCode"]) == ("enough", 137)


def test_an_agent_that_is_stopped_is_not_connected(ecs: Any, start: Start, world: World) -> None:
    machine = start()
    row = connected(ecs)
    machine.stop()
    world.later = SILENT_SECONDS + 1
    assert not instances(ecs)[0]["agentConnected"]
    assert run(ecs, row, 1)["failures"][0]["reason"] == "AGENT"
    world.later = 0.0
    machine.start()
    assert connected(ecs)["containerInstanceArn"] == row["containerInstanceArn"], "it registers as the same one"


def test_deregistered_instances_leave_the_cluster(ecs: Any, start: Start, world: World) -> None:
    machine = start()
    row = connected(ecs)
    started = run(ecs, row, 1)
    named = {"cluster": CLUSTER, "containerInstance": row["containerInstanceArn"]}
    assert refused(ecs.delete_cluster, cluster=CLUSTER)[0] == "ClusterContainsContainerInstancesException"
    assert refused(ecs.deregister_container_instance, **named)[0] == "InvalidParameterException"
    ecs.deregister_container_instance(**named, force=True)
    assert not instances(ecs) and task(ecs, started)["lastStatus"] == "STOPPED"
    assert machine.agent and machine.agent.wait(30) == 5, "ecs-init does not start it again"
    assert "Container instance is deregistered" in machine.read("var/log/ecs/ecs-agent.log")
    ecs.delete_cluster(cluster=CLUSTER)


def test_a_terminated_machine_is_deregistered_by_ecs(ecs: Any, start: Start, world: World) -> None:
    machine = start()
    connected(ecs)
    machine.stop()
    world.ec2.backend.terminate_instances([machine.instance_id])
    assert not instances(ecs)


def test_a_cluster_that_does_not_exist_is_tried_again(ecs: Any, start: Start) -> None:
    machine = start("of-nobody")
    until(lambda: "ClusterNotFoundException: Cluster not found." in machine.read("var/log/ecs/ecs-agent.log"))
    assert json.loads(machine.read("var/lib/ecs/data/agent.db")) == {
        "agent-version": "1.100.1", "ec2-instance-id": machine.instance_id,
    }  # fmt: skip
    ecs.create_cluster(clusterName="of-nobody")
    until(lambda: instances(ecs, cluster="of-nobody"))


def test_state_of_another_machine_or_cluster(ecs: Any, start: Start) -> None:
    """Of another machine it is overwritten; of another cluster, the agent ends and is not started again."""
    machine = start()
    row = connected(ecs)
    machine.stop()
    state = machine.root / "var/lib/ecs/data/agent.db"
    kept = json.loads(state.read_text())
    state.write_text(json.dumps(kept | {"ec2-instance-id": "i-0bbbbbbbbbbbbbbbb"}))
    machine.start()
    until(lambda: len(instances(ecs)) == 2)
    assert "saved InstanceID does not match" in machine.read("var/log/ecs/ecs-agent.log")
    machine.stop()
    state.write_text(json.dumps(kept | {"cluster-name": "other"}))
    machine.start()
    assert machine.agent and machine.agent.wait(30) == 5
    assert "saved cluster 'other' does not match configured cluster 'gpu-nodes'" in machine.read(
        "var/log/ecs/ecs-agent.log"
    )
    assert row["containerInstanceArn"] == kept["container-instance-arn"]


def test_agents_act_for_their_own_machine(ecs: Any, endpoint: str, start: Start, world: World) -> None:
    start()
    row = connected(ecs)
    named = {"cluster": CLUSTER, "containerInstance": row["containerInstanceArn"]}
    assert refused(ecs.discover_poll_endpoint, **named)[0] == "AccessDeniedException"
    stranger = client(endpoint, "ecs", instance_access_key("i-0aaaaaaaaaaaaaaaa"))
    assert stranger.discover_poll_endpoint(**named)["endpoint"] == "http://region"
    again = {"cluster": CLUSTER, "containerInstanceArn": row["containerInstanceArn"]}
    assert refused(stranger.register_container_instance, **again)[0] == "InvalidParameterException"
    started = run(ecs, row, 1)
    of_task = {"cluster": CLUSTER, "task": started["tasks"][0]["taskArn"], "status": "STOPPED"}
    assert refused(stranger.submit_task_state_change, **of_task)[0] == "InvalidParameterException"


def test_a_draining_instance_gets_no_task(ecs: Any, start: Start) -> None:
    start()
    row = connected(ecs)
    ecs.update_container_instances_state(
        cluster=CLUSTER, containerInstances=[row["containerInstanceArn"]], status="DRAINING"
    )
    assert run(ecs, row, 1)["failures"][0]["reason"] == "INACTIVE"
    listed = ecs.list_container_instances(cluster=CLUSTER, status="ACTIVE")["containerInstanceArns"]
    assert not listed and ecs.list_tasks(cluster=CLUSTER)["taskArns"] == []


def test_a_driver_that_does_not_answer_keeps_the_agent_down(ecs: Any, start: Start) -> None:
    machine = start()
    machine.stop()
    machine.program("nvidia-smi", "#!/bin/sh\necho 'NVIDIA-SMI has failed' >&2; exit 9\n")
    assert machine.ecs_init("pre-start") == 1
    assert "error initializing nvidia nvml: NVIDIA-SMI has failed" in machine.read("var/log/ecs/ecs-init.log")
    assert (machine.ecs_init("stop"), machine.ecs_init("what")) == (0, 2)
