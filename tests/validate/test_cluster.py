"""The machines of a proof as nodes of a cluster: refusals before a launch, what is checked where, and tier TN."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import Clusters, Place
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.report import document
from gpu_ami.report.certificate import not_proven
from gpu_ami.report.document import NO_CLUSTER, HostReport, Report
from gpu_ami.validate import cluster
from gpu_ami.validate.proof import ProofOptions
from gpu_ami.validate.recorder import HostRecord
from gpu_ami.validate.validator_process import Target
from tests.report.examples import a_check
from tests.validate.conftest import a_machine
from tests.validate.scripted_proof import ROLES, Scripted, a_proof, prove_ami
from tests.validate.test_machine_group import FIRST, KIND, SECOND, Cluster
from validator.probes.cluster import joined
from validator.results import HostResults

TAG = {"Key": "parallelcluster:version", "Value": "3.16.3"}
NODE_PLAN = {"node_parallelcluster": {"version": "3.16.3"}, "node": {"family": "parallelcluster"}}


class Tagged(Cluster):
    """EC2 with the AMI of a ParallelCluster recipe, one of whose tags somebody removed."""

    def image(self, ami: str) -> dict[str, Any]:
        return {"ImageId": ami, "Tags": [TAG, {"Key": "Name", "Value": "x"}]}


class Joining(Scripted):
    """A proof with --join; `found` is what the checks of the node say."""

    found: Sequence[str] = ("PASS", "PASS")
    passes: list[str]
    seen: joined.Joined

    def run_checks(self, target: Target, folder: Path, options: Sequence[str], *_: Any, **__: Any) -> HostResults:
        name, _, file = next(option for option in options if option.startswith(("--join=", "--nodes="))).partition("=")
        self.passes.append(name)
        if name == "--nodes":
            return HostResults(target.url, (a_check("several_nodes", "PASS", tier="T4"),))
        self.seen = joined.read(Path(file))
        names = zip(("munge", "cookbook"), self.found, strict=True)
        checks = [
            a_check("node_in_slurm", verdict, id=f"node_in_slurm::test_{name}", tier="TN", message=f"no {name}")
            for name, verdict in names
        ]
        return HostResults(target.url, tuple(checks))


def a_join(tmp_path: Path, count: int = 1, found: Sequence[str] = ("PASS", "PASS")) -> Joining:
    made = a_proof(tmp_path, ())
    system = {"id": "ubuntu", "version": "24.04", "ssh_user": "ubuntu"}
    plan: Any = dict(made.plan or {}) | {"roles": [*ROLES, "node_parallelcluster"], "os": system} | NODE_PLAN
    proof = Joining(plan, None, None, tmp_path, made.progress, ProofOptions(nodes=count, join=""))
    proof.finds, proof.found, proof.passes = {}, found, []
    return proof


def prove(proof: Joining, cloud: Cluster) -> Report:
    return prove_ami(proof, cloud, [KIND])


def tier(report: Report, name: str = "TN") -> dict[str, Any]:
    return dict(next(row for row in report.tiers if row["name"] == name))


def test_one_machine_is_a_cluster_of_its_own(booted: None, tmp_path: Path) -> None:
    proof = a_join(tmp_path)
    report = prove(proof, Tagged())
    assert proof.passes == ["--join"] and [node.name for node in proof.seen.nodes] == [FIRST]
    assert proof.seen.tags == {TAG["Key"]: TAG["Value"]} and len(proof.seen.expected_tags) == 3
    (host,) = report.hosts
    assert host.facts["cluster"] == {
        "service": "ParallelCluster", "version": "3.16.3", "name": "", "own": True, "nodes": [FIRST],
    }  # fmt: skip
    assert tier(report)["verdict"] == "PASS" and tier(report)["checks"] == 2
    assert not any("no ParallelCluster cluster was joined" in line for line in not_proven(report, ()))


def test_the_checks_after_a_restart_are_those_that_survive_it(tmp_path: Path) -> None:
    proof = a_join(tmp_path)
    seen: list[Sequence[str]] = []

    def run_checks(target: Target, folder: Path, options: Sequence[str], *_: Any, **__: Any) -> HostResults:
        seen.append(options)
        return HostResults(target.url, (a_check("node_in_eks", "PASS", id=f"{folder.name}", tier="TN"),))

    proof.run_checks = run_checks  # type: ignore[method-assign]
    service = SimpleNamespace(stage="as a node", described=lambda *_: joined.Joined("eks", ()))
    of = SimpleNamespace(service="EKS", version="1.34", name="c", own=True)
    host = HostRecord(HostReport(KIND, FIRST, host="ssh://x"))
    made: Any = cluster.Joining(
        service, SimpleNamespace(cloud=Tagged(), run=SimpleNamespace(folder=tmp_path)), of, lambda remove: remove()
    )  # type: ignore[arg-type]
    for after in ("", "reboot"):
        made.check(proof, host, Target("ssh://x", KIND), [a_machine()], after)
    assert ["--after=reboot" in options for options in seen] == [False, True]
    assert [check.id for check in host.report.checks] == [f"{KIND}-join", "after-reboot"]


def test_all_machines_are_its_nodes_before_they_work_together(booted: None, tmp_path: Path) -> None:
    proof, cloud = a_join(tmp_path, 2), Tagged()
    report = prove(proof, cloud)
    assert proof.passes == ["--join", "--nodes"] and [node.name for node in proof.seen.nodes] == [FIRST, SECOND]
    assert tier(report)["verdict"] == tier(report, "T4")["verdict"] == "PASS"
    assert not cloud.alive and not cloud.groups


def test_what_was_not_judged_keeps_the_tier_open_and_the_proof_green(booted: None, tmp_path: Path) -> None:
    report = prove(a_join(tmp_path, found=("PASS", "UNPROVEN")), Tagged())
    assert (tier(report)["verdict"], tier(report)["reason"]) == (
        "UNPROVEN",
        f"on {KIND}, not shown: test_cookbook: no cookbook",
    )
    assert report.hosts[0].worst_of_its_checks == "PASS"


def test_a_check_that_failed_makes_the_proof_red(booted: None, tmp_path: Path) -> None:
    report = prove(a_join(tmp_path, found=("FAIL", "PASS")), Tagged())
    assert tier(report)["verdict"] == "FAIL" and report.exit_code == 1


def test_tags_that_cannot_be_read_end_with_exit_code_4(booted: None, tmp_path: Path) -> None:
    class Refuses(Tagged):
        def image(self, ami: str) -> dict[str, Any]:
            raise CloudError(f"describing {ami}: UnauthorizedOperation")

    cloud = Refuses()
    report = prove(a_join(tmp_path), cloud)
    assert report.exit_code == 4 and "UnauthorizedOperation" in report.hosts[0].error and not cloud.alive


@pytest.mark.parametrize("moment", ["first pass", "join", "together"])
def test_ctrl_c_leaves_nothing(booted: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, moment: str) -> None:
    cloud, proof = Tagged(), a_join(tmp_path, 2)

    def pressed(real: Callable[..., Any]) -> Callable[..., Any]:
        def press(*arguments: Any, **named: Any) -> Any:
            if moment == "first pass" or len(proof.passes) == ["join", "together"].index(moment):
                os.kill(os.getpid(), signal.SIGINT)
                proof.options.cancelled.wait(60)
            return real(*arguments, **named)

        return press

    name = "check" if moment == "first pass" else "run_checks"
    monkeypatch.setattr(proof, name, pressed(getattr(proof, name)))
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.ExitStack() as undone, pytest.raises(KeyboardInterrupt):
        undone.callback(signal.signal, signal.SIGINT, before)
        prove(proof, cloud)
    assert not cloud.alive and not cloud.groups and cloud.calls[-1] == "delete_key"
    assert document.load(tmp_path / "report.json").incomplete == "the run was interrupted"


def test_without_join_the_tier_says_how_to_ask(booted: None, tmp_path: Path) -> None:
    proof = a_join(tmp_path)
    proof.options = ProofOptions()
    report = prove(proof, Tagged())
    assert not proof.passes and (tier(report)["verdict"], tier(report)["reason"]) == ("UNPROVEN", NO_CLUSTER)
    assert "--join" in NO_CLUSTER
    assert any("no ParallelCluster cluster was joined" in line for line in not_proven(report, ()))


def test_an_image_that_is_no_node_has_no_such_tier() -> None:
    report = Report({"roles": ["nvidia_driver"]}, "ami-1", "", "", False, "", "", "", hosts=(HostReport(KIND),))
    assert [row["name"] for row in report.tiers] == ["T0", "T1", "T2", "T3", "T4"]
    assert set(document.NODE_SERVICES) == {"node_eks", "node_eks_ubuntu", "node_ecs", "node_parallelcluster"}


@pytest.mark.parametrize(
    ("plan", "join", "message", "hint"),
    [
        ({}, "", "an image of node family ec2 is no node of a cluster", "ParallelCluster"),
        ({"node": {"family": "dlami"}, "node_dlami": {}}, "x", "an image of node family dlami is no node", "--join"),
        (NODE_PLAN, "prod", "--join prod: ParallelCluster launches the nodes of its clusters itself", "without a name"),
        (NODE_PLAN, "", "", ""),
        ({}, None, "", ""),
        ({"node_eks_ubuntu": {}}, "prod", "nodes of EKS (Ubuntu) join no cluster in this release", "leave out --join"),
    ],
)
def test_refusals_before_a_launch(plan: Any, join: str | None, message: str, hint: str) -> None:
    a_cloud: Any = SimpleNamespace(place=Place("aws", "us-east-1", clusters=Clusters(name="of-the-place")))
    if not message:
        cluster.require(plan, join, a_cloud)
        return
    with pytest.raises(UsageError) as caught:
        cluster.require(plan, join, a_cloud)
    assert message in caught.value.message and hint in caught.value.hint and caught.value.exit_code == 2


def test_a_service_whose_nodes_join_no_cluster_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cluster, "SERVICES", {})
    plan, a_cloud = {"node_eks": {}}, SimpleNamespace(place=Place("aws", "us-east-1"))
    with pytest.raises(UsageError, match="nodes of EKS join no cluster in this release") as caught:
        cluster.require(plan, "x", a_cloud)  # type: ignore[arg-type]
    assert "UNPROVEN" in caught.value.hint and not cluster.is_supported(plan, a_cloud.place)  # type: ignore[arg-type]
