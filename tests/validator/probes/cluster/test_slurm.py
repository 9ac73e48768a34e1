"""The Slurm cluster of a proof, on scripted machines: its files, what is read of Slurm, and what is left behind."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.validator.probes.cluster.test_nodes import line, member
from tests.validator.probes.test_compute import MACHINE, WRONG, gpu
from validator.checks import node_in_slurm
from validator.probes import compute
from validator.probes.cluster import nodes
from validator.probes.cluster.nodes import Member, NodeFailed, Together

UUIDS = [f"GPU-11111111-0000-0000-0000-00000000000{number}" for number in range(4)]
LISTED = [
    "".join(f"GPU {row}: NVIDIA H100 (UUID: {uuid})\n" for row, uuid in enumerate(UUIDS[at : at + 2])) for at in (0, 2)
]
# Slurm 22.05.8 of Debian 12, and 24.11's Gres with cores.
NODES = """\
NodeName=node1 Arch=x86_64 CPUTot=2 Gres=gpu:2 NodeAddr=10.0.0.4 State=IDLE Partitions=proof
NodeName=node2 Gres=gpu:h100:2(S:0-1) State=IDLE+DRAIN Reason=gres/gpu count reported lower (1 < 2) [slurm@2026-11-25T1]
NodeName=node3 Gres=(null) State=DOWN*+CLOUD Partitions=proof
"""


def scripted(number: int, answers: dict[str, tuple[int, str]] | None = None) -> Member:
    one = member(f"i-{number}", f"10.0.0.{number + 3}/20")
    described = f"host ip-10-0-0-{number + 3}\ncpus 2\nslurm slurm 24.11.6\nmunge munge-0.5.16 (2024-03-15)\n"
    described += LISTED[number - 1]
    one.connection = line({**(answers or {}), "hostname": (0, described)})
    return one


def a_cluster(*answers: dict[str, tuple[int, str]]) -> node_in_slurm.SlurmCluster:
    members = [scripted(number, answers[number - 1] if answers else None) for number in (1, 2)]
    nodes.choose_addresses(members)
    return node_in_slurm.SlurmCluster(Together([], members, folder="/tmp/f"), 2)


def ran(one: Member) -> list[tuple[str, bytes | None]]:
    return one.connection.asked  # type: ignore[attr-defined,no-any-return]


def test_every_node_gets_the_same_files_and_the_key_in_no_command() -> None:
    cluster = a_cluster()
    cluster.munge()
    files = cluster.files()
    assert "SlurmctldHost=ip-10-0-0-4(10.0.0.4)" in files["slurm.conf"]
    assert "NodeName=node2 NodeAddr=10.0.0.5 NodeHostname=ip-10-0-0-5 CPUs=2 Gres=gpu:2 State" in files["slurm.conf"]
    assert files["gres.conf"] == "Name=gpu File=/dev/nvidia[0-1]\n"
    assert cluster.uuids == [UUIDS[:2], UUIDS[2:]]
    assert cluster.versions == ["slurm 24.11.6, munge-0.5.16 (2024-03-15)"] * 2
    keys = []
    for one in cluster.together.members:
        written = {command: given for command, given in ran(one) if "cat >" in command}
        assert written[f"sudo -n sh -c 'cat > {node_in_slurm.FOLDER}/slurm.conf'"] == files["slurm.conf"].encode()
        ((command, given),) = [(command, given) for command, given in ran(one) if "munge.service" in command]
        assert given and len(given) > 150 and given.decode().strip() not in command
        keys.append(given)
    assert keys[0] == keys[1]


@pytest.mark.parametrize(
    ("gpus", "text"), [(1, "Name=gpu File=/dev/nvidia0\n"), (0, ""), (8, "Name=gpu File=/dev/nvidia[0-7]\n")]
)
def test_devices_of_the_type(gpus: int, text: str) -> None:
    cluster = a_cluster()
    cluster.munge()
    cluster.gpus = gpus
    assert cluster.files()["gres.conf"] == text and ("Gres=" in cluster.files()["slurm.conf"]) is bool(gpus)


def test_a_machine_of_a_cluster_is_refused_and_keeps_its_key() -> None:
    cluster = a_cluster(
        {}, {"sudo -n sh -s": (1, "/etc/munge/munge.key exists: the machine belongs to a cluster already")}
    )
    with pytest.raises(NodeFailed, match=r"i-2 \(10.0.0.5\): is prepared: /etc/munge/munge.key exists"):
        cluster.munge()
    cluster.leave()
    script = (ran(cluster.together.members[1])[-1][1] or b"").decode()
    assert script.startswith(f"[ -d {node_in_slurm.FOLDER} ] || exit 0\n"), "nothing of the cluster's own ends"


def test_munge_that_does_not_start_is_quoted() -> None:
    said = (0, 'munged: Error: Keyfile is insecure: invalid ownership of "/etc/munge"')
    cluster = a_cluster({"systemctl restart munge": (1, "Job for munge.service failed"), "journalctl": said}, {})
    with pytest.raises(
        NodeFailed, match=r"i-1 .*munge does not start: Job for munge.service failed; .*invalid ownership"
    ):
        cluster.munge()


def test_credentials_that_another_node_refuses() -> None:
    cluster = a_cluster({}, {"unmunge --metadata": (15, "unmunge: Error: Invalid credential")})
    cluster.began = True
    wrong = "i-2 (10.0.0.5) refuses i-1 (10.0.0.4)'s: unmunge: Error: Invalid credential"
    assert wrong in cluster.strangers() and len(cluster.strangers()) == 2  # its own, too


def test_nodes_as_slurmctld_has_them() -> None:
    first, second, third = node_in_slurm.read_nodes(NODES)
    assert (first.name, first.gres, first.state, first.reason) == ("node1", "gpu:2", "IDLE", "")
    assert (second.gres, second.state) == ("gpu:h100:2(S:0-1)", "IDLE+DRAIN")
    assert second.reason.startswith("gres/gpu count reported lower (1 < 2)")
    assert (third.gres, third.state) == ("", "DOWN*+CLOUD")


@pytest.mark.parametrize(
    ("gres", "count"),
    [("gpu:8", 8), ("gpu:h100:8(S:0-1)", 8), ("gpu:1,mps:100", 1), ("gpu:a:1(S:0,2),gpu:b:3", 4), ("", 0), ("gpu", 1)],
)
def test_gpus_of_a_gres(gres: str, count: int) -> None:
    assert node_in_slurm.gpu_count(gres) == count


def printed(label: int, *uuids: str, **changes: Any) -> str:
    gpus = [gpu(index, uuid=uuid.removeprefix("GPU-")) for index, uuid in enumerate(uuids)]
    machine = MACHINE | {"count": len(uuids)} | changes
    rows = [f"node node{label + 1}", f"visible {','.join(map(str, range(len(uuids))))}", json.dumps(machine)]
    return "".join(f"{label}: {row}\n" for row in [*rows, *map(json.dumps, gpus)])


def test_tasks_of_a_job_are_read_by_their_labels() -> None:
    first, second = printed(0, *UUIDS[:2]).splitlines(), printed(1, *UUIDS[2:]).splitlines()
    mixed = "\n".join(line for pair in zip(first, second, strict=True) for line in pair)
    tasks = node_in_slurm.read_tasks(f"srun: a message\n{mixed}\n")
    assert [(task.node, task.visible) for task in tasks] == [("node1", "0,1"), ("node2", "0,1")]
    assert [uuid for task in tasks for uuid in task.uuids] == UUIDS


def test_wrong_results_and_missing_gpus_are_defects() -> None:
    row = json.dumps(gpu(0, wrong=WRONG))
    (task,) = node_in_slurm.read_tasks(f"0: node node1\n0: {json.dumps(MACHINE | {'count': 2})}\n0: {row}\n")
    assert [text[:5] for text in task.defects] == ["GPU 0", "GPU 1"] and "result at byte" in task.defects[0]


def test_a_task_without_a_result_is_no_task_without_gpus() -> None:
    with pytest.raises(compute.Unanswered, match=r"task on node1: .*python3: not found"):
        node_in_slurm.read_tasks("0: node node1\n0: visible 0\n0: sh: python3: not found\n")
    assert node_in_slurm.read_tasks("") == []


def test_only_slurm_s_own_refusal_counts() -> None:
    cluster = a_cluster(
        {"gpu:3": (1, "srun: error: Unable to allocate resources: Requested node configuration is not available")}, {}
    )
    assert node_in_slurm.is_refused(cluster.run(1, 3)) and not node_in_slurm.is_refused(cluster.run(1, 2))
    cluster = a_cluster({"gpu:3": (1, "srun: error: Unable to allocate resources: Connection timed out")}, {})
    assert not node_in_slurm.is_refused(cluster.run(1, 3))


def test_what_was_started_ends_and_a_dead_node_is_no_error() -> None:
    cluster = a_cluster()
    cluster.leave()
    assert not ran(cluster.together.members[0]), "nothing was begun"
    cluster.munge()

    def refuse(*_: Any) -> Any:
        raise NodeFailed("gone")

    cluster.together.members[1].run = refuse  # type: ignore[method-assign]
    cluster.leave()
    script = (ran(cluster.together.members[0])[-1][1] or b"").decode()
    for part in ("gpu-ami-slurmd.service", "slurmstepd.scope", "munge.service", f"rm -rf {node_in_slurm.FOLDER}"):
        assert part in script
