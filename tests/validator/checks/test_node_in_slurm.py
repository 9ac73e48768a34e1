"""Checks of a ParallelCluster image in a Slurm cluster, on scripted machines: green, and red with each message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, Judge
from tests.validator.probes.cluster.test_slurm import NODES, UUIDS, a_cluster, printed
from validator.checks import node_in_slurm
from validator.checks import node_in_slurm as checks
from validator.checks.node_in_slurm import Started
from validator.plan import as_plan
from validator.probes.cluster.joined import Joined
from validator.probes.cluster.nodes import Node

TAGS = {"parallelcluster:version": "3.16.3", "parallelcluster:os": "ubuntu2404"}
(ROW,) = PLAN["instance_types"]
BOTH = printed(0, *UUIDS[:2]) + printed(1, *UUIDS[2:])
NOT_AVAILABLE = "srun: error: Unable to allocate resources: Requested node configuration is not available"
IDLE = NODES.splitlines()[0]
SECOND = IDLE.replace("node1", "node2")
BROKEN = BOTH.replace('"wrong": null', '"wrong": {"byte": 4, "expected": "1", "got": "3"}')


def plan(gpus: int = 2) -> Any:
    return as_plan(PLAN | {"instance_types": [ROW | {"gpu_count": gpus}]})


def started(nodes: str = "", *answers: dict[str, tuple[int, str]], **errors: str) -> Started:
    """A cluster of two nodes with two GPUs each, whose commands have scripted answers."""
    cluster = a_cluster(*answers)
    cluster.munge()
    listed = nodes or f"{IDLE}\n{SECOND}\n"
    return Started(cluster, registered=tuple(node_in_slurm.read_nodes(listed)), **errors)


@pytest.mark.parametrize(
    ("tags", "verdict", "message"),
    [
        (TAGS, "PASS", ""),
        ({}, "FAIL", "parallelcluster:version: expected 3.16.3, got no such tag"),
        (
            TAGS | {"parallelcluster:os": "alinux2023"},
            "FAIL",
            "parallelcluster:os: expected ubuntu2404, got alinux2023",
        ),
    ],
)
def test_tags(judge: Judge, tags: dict[str, str], verdict: str, message: str) -> None:
    file = Joined("parallelcluster", (Node("i-1", "u"),), tags, TAGS)
    judged = judge(checks.test_ami_has_the_tags_of_parallelcluster, {}, cluster_file=file)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


ACCEPTED = "Request would have succeeded, but DryRun flag is set."
NO_KEY = {"level": "WARNING", "type": "KeyPairValidator", "message": "If you do not specify a key pair"}
NO_TAGS = {"level": "WARNING", "type": "CustomAmiTagValidator", "message": "may not have been created by pcluster"}
NO_ROLE = {"level": "ERROR", "type": "IamPolicyValidator", "message": "AccessDenied"}


@pytest.mark.parametrize(
    ("answer", "verdict", "message"),
    [
        ({"message": ACCEPTED, "findings": [NO_KEY]}, "PASS", ""),
        ({"message": ACCEPTED, "findings": []}, "PASS", ""),
        ({}, "UNPROVEN", "pip install aws-parallelcluster==3.16.3"),
        ({"error": "exit status 1: no credentials"}, "UNPROVEN", "no answer: exit status 1: no credentials"),
        ({"message": ACCEPTED, "findings": [NO_TAGS, NO_KEY]}, "FAIL", "CustomAmiTagValidator (WARNING): may not have"),
        ({"message": "Invalid cluster configuration.", "findings": [NO_ROLE]}, "UNPROVEN", "(ERROR): AccessDenied"),
        ({"message": "Invalid cluster configuration.", "findings": [NO_ROLE, NO_TAGS]}, "FAIL", "CustomAmiTag"),
        ({"message": "Cluster already exists", "findings": []}, "UNPROVEN", "than the AMI: Cluster already exists"),
    ],
)
def test_dry_run(judge: Judge, answer: dict[str, object], verdict: str, message: str) -> None:
    file = Joined("parallelcluster", (Node("i-1", "u"),), TAGS, TAGS, dry_run=answer)
    judged = judge(checks.test_pcluster_accepts_the_ami, {}, cluster_file=file)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


REFUSES = {"unmunge --metadata": (15, "unmunge: Error: Invalid credential")}


@pytest.mark.parametrize(
    ("made", "verdict", "message"),
    [
        (started(), "PASS", ""),
        (started("", {}, REFUSES), "FAIL", "i-2 (10.0.0.5) refuses i-1 (10.0.0.4)'s: unmunge: Error: Invalid"),
        (started(munge_error="i-1: munge does not start: x"), "FAIL", "i-1: munge does not start: x"),
    ],
)
def test_munge(judge: Judge, made: Started, verdict: str, message: str) -> None:
    judged = judge(checks.test_munge_authenticates_every_node, {}, started=made)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("made", "verdict", "message"),
    [
        (started(), "PASS", ""),
        (
            started(NODES.replace("NodeName=node3", "NodeName=node9")),
            "FAIL",
            "node2: expected IDLE, got IDLE+DRAIN (gres",
        ),
        (started(IDLE), "FAIL", "node2: slurmctld does not know it"),
        (
            started(IDLE.replace("gpu:2", "gpu:1") + "\n" + IDLE.replace("node1", "node2")),
            "FAIL",
            "node1: Gres gpu:1, g5",
        ),
        (started(slurm_error="i-1: slurmd: no such file"), "FAIL", "i-1: slurmd: no such file"),
        (started(munge_error="x"), "UNPROVEN", "munge does not start: x"),
    ],
)
def test_registration(judge: Judge, made: Started, verdict: str, message: str) -> None:
    judged = judge(checks.test_slurmd_registers_every_gpu, {}, started=made, plan=plan())
    assert (judged.verdict, message in judged.message) == (verdict, True), judged
    assert verdict != "FAIL" or made.slurm_error or "logs have no error" in judged.message


def job(text: str, rc: int = 0, **errors: str) -> Started:
    return started("", {"srun": (rc, text)}, {}, **errors)


@pytest.mark.parametrize(
    ("made", "verdict", "message"),
    [
        (job(BOTH), "PASS", ""),
        (job(printed(0, *UUIDS[:2])), "FAIL", "1 of 2 tasks"),
        (
            job(printed(0, *UUIDS[:2]) + printed(1, UUIDS[2])),
            "FAIL",
            "node2: nvidia-smi -L lists 2 GPUs; the job lacks",
        ),
        (job(printed(0, *UUIDS[:2]) + printed(1, *UUIDS[:2])), "FAIL", "more than once: GPU-1"),
        (
            job(BOTH.replace('"wrong": null', '"wrong": {"byte": 4, "expected": "1", "got": "3"}')),
            "FAIL",
            "node1: GPU 0: result at",
        ),
        (
            job("0: node node1\n0: sh: python3: not found\n", 127),
            "FAIL",
            "srun ended with 127: the compute probe",
        ),
        (job("srun: error: Node failure on node2", 1), "FAIL", "srun ended with 1: srun: error: Node failure on node2"),
        (job(BOTH, slurm_error="i-1: slurmd"), "UNPROVEN", "Slurm does not run: i-1: slurmd"),
        (started(NODES), "UNPROVEN", "not idle in Slurm: node2"),
    ],
)
def test_job_on_all_gpus(judge: Judge, made: Started, verdict: str, message: str) -> None:
    judged = judge(checks.test_a_job_on_all_gpus_sees_each_once, {}, started=made, plan=plan())
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("made", "gpus", "verdict", "message"),
    [
        (job(printed(0, UUIDS[0])), 2, "PASS", ""),
        (job(printed(0, *UUIDS[:2])), 2, "FAIL", "expected one GPU, got 2: GPU-1"),
        (job(""), 2, "FAIL", "expected one GPU, got 0"),
        (job(printed(0, UUIDS[0])), 1, "UNPROVEN", "has one GPU"),
        (job(printed(0, UUIDS[0])), 0, "UNPROVEN", "has no NVIDIA GPU"),
    ],
)
def test_job_on_one_gpu(judge: Judge, made: Started, gpus: int, verdict: str, message: str) -> None:
    judged = judge(checks.test_a_job_sees_no_gpu_that_it_did_not_ask_for, {}, started=made, plan=plan(gpus))
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("made", "verdict", "message"),
    [
        (job(NOT_AVAILABLE, 1), "PASS", ""),
        (job(BOTH), "FAIL", "srun --gres=gpu:3: expected a refusal, got exit status 0: no message"),
        (job("Connection timed out", 1), "FAIL", "expected a refusal, got exit status 1: Connection timed out"),
    ],
)
def test_one_gpu_more(judge: Judge, made: Started, verdict: str, message: str) -> None:
    judged = judge(checks.test_a_job_for_one_gpu_more_is_refused, {}, started=made, plan=plan())
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("table", "verdict", "message"),
    [
        ({"test -s*": (1, "")}, "UNPROVEN", "no /var/log/chef-client.log: these machines are"),
        ({"test -s*": "", "sudo*": ""}, "PASS", ""),
        (
            {"test -s*": "", "sudo*": "7:[2026] FATAL: Net::HTTP\n"},
            "FAIL",
            "chef-client.log: 7:[2026]",
        ),
        ({"test -s*": "", "sudo*": (1, "", "sudo: a password is required")}, "FAIL", "a password is required"),
    ],
)
def test_cookbook(judge: Judge, table: dict[str, Any], verdict: str, message: str) -> None:
    judged = judge(checks.test_cookbook_reports_no_error, table)
    assert (judged.verdict, message in judged.message) == (verdict, True), judged
