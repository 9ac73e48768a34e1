"""The checks of an ECS node in a validator of their own, against the region's ECS and the replica of the agent.

The machine is this one: its Docker and nvidia-smi follow a script, the image of the task is made of its real Python.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import ApiAccess, Place
from gpu_ami.cloud.place import Credentials
from gpu_ami.validate import validator_process
from tests.localregion.api.test_layer import client
from tests.localregion.conftest import World
from tests.localregion.container_machines import GPUS, ContainerMachine
from tests.validator.checks.conftest import PLAN
from tests.validator.probes.test_compute import MACHINE, gpu
from validator.probes.cluster import joined
from validator.probes.cluster.nodes import Node
from validator.results import HostResults

pytestmark = pytest.mark.slow
CLUSTER = "gpu-nodes"
DONE = {"computed_mib": 16, "pattern_mib": 1}


@pytest.fixture
def machine(world: World, endpoint: str, tmp_path: Path) -> Any:
    client(endpoint, "ecs").create_cluster(clusterName=CLUSTER)
    made = ContainerMachine(endpoint, world.launch().id, tmp_path / "machine", CLUSTER)
    rows = [gpu(index, uuid=uuid.removeprefix("GPU-"), **DONE) for index, uuid in enumerate(GPUS)]
    printed = "".join(json.dumps(row) + "\n" for row in (MACHINE, *rows))
    (made.root / "result.json").write_text(json.dumps({"printed": printed, "errors": ""}))
    yield made
    made.close()


def run(machine: ContainerMachine, endpoint: str, tmp_path: Path) -> tuple[dict[str, tuple[str, str]], str]:
    """Verdict and message of each check, and the run's id."""
    run_id = f"20261125-000000-{secrets.token_hex(3)}"
    file, plan, out = tmp_path / "join.json", tmp_path / "plan.json", tmp_path / "out"
    out.mkdir()
    (row,) = PLAN["instance_types"]
    sections: Any = {"node_ecs": {"version": "", "accelerator": "nvidia"}}
    sections["instance_types"] = [row | {"gpu_count": len(GPUS)}]
    plan.write_text(json.dumps({"schema": "gpu-ami/plan/1"} | PLAN | sections))
    nodes = (Node(machine.instance_id, "local://"),)
    joined.write(file, joined.Joined("ecs", nodes, cluster=CLUSTER, run=run_id, run_tags={"gpu-ami:run": run_id}))
    place = Place("local", "us-east-1", api=ApiAccess(endpoint=endpoint, credentials=Credentials("local", "local")))
    target = validator_process.Target("local://", row["name"], machine.instance_id)
    options = [f"--join={file}", "--no-evidence"]
    words = validator_process.command_line(target, out, plan, place, options)
    own = os.environ | validator_process.environment(place) | {"PATH": machine.environment["PATH"]}
    command = [str(word) for word in words]
    done = subprocess.run(command, env=own, capture_output=True, text=True, timeout=240, check=False)
    results = HostResults.load(out / validator_process.RESULTS_FILE)
    assert results.checks, done.stdout[-3000:]
    return {check.id.rpartition("::test_")[2]: (str(check.verdict), check.message) for check in results.checks}, run_id


def test_a_node_that_is_right(machine: ContainerMachine, endpoint: str, tmp_path: Path) -> None:
    machine.start()
    found, run_id = run(machine, endpoint, tmp_path)
    assert {name: verdict for name, (verdict, _) in found.items()} == {
        "agent_connects_to_the_cluster": "PASS", "agent_registers_every_gpu": "PASS",
        "a_task_on_all_gpus_computes_on_each": "PASS", "a_task_for_one_gpu_more_is_refused": "PASS",
    }, found  # fmt: skip
    assert not Path(f"/var/tmp/gpu-ami-task-{run_id}").exists()
    assert client(endpoint, "ecs").list_task_definitions(status="ACTIVE")["taskDefinitionArns"] == []
    log = machine.read("docker.log")
    assert f"image rm --force localhost:1/gpu-ami/compute-probe:{run_id}" in log and "/probe/task.py --mib 16" in log


def test_an_agent_that_registers_one_gpu_less(machine: ContainerMachine, endpoint: str, tmp_path: Path) -> None:
    machine.start(without=GPUS[1])
    found, _ = run(machine, endpoint, tmp_path)
    assert found["agent_registers_every_gpu"] == ("FAIL", f"expected 2 GPUs, got 1; not registered: {GPUS[1]}")
    assert found["a_task_on_all_gpus_computes_on_each"][1].endswith("with 2 GPUs here: RESOURCE:GPU")
    assert found["agent_connects_to_the_cluster"][0] == "PASS"
