"""A proof whose machine joins an ECS cluster: what is made, left and removed, in which order, and whatever ends it."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import ecs
from gpu_ami.errors import CloudError
from gpu_ami.report import document
from gpu_ami.validate.proof import ProofOptions
from gpu_ami.validate.validator_process import Target
from tests.report.examples import a_check
from tests.validate.scripted_proof import ROLES, Scripted, a_proof, prove_ami
from tests.validate.test_machine_group import FIRST, KIND, Cluster
from validator.probes.cluster import joined
from validator.results import HostResults

ROLE: Any = {"node_ecs": {"version": "", "accelerator": "nvidia"}, "node": {"family": "ecs"}}
OWN = "gpu-ami-run-1"


class Joining(Scripted):
    """A proof with --join of an ECS image; `during` is called while its checks of the node run."""

    during: Callable[[], object]
    seen: joined.Joined | None = None

    def run_checks(self, target: Target, folder: Path, options: Sequence[str], *_: Any, **__: Any) -> HostResults:
        (file,) = [option.partition("=")[2] for option in options if option.startswith("--join=")]
        self.seen = joined.read(Path(file))
        self.during()
        return HostResults(target.url, (a_check("node_in_ecs", "PASS", id="node_in_ecs::test_agent", tier="TN"),))


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Cluster:
    made = Cluster()
    for name in ("create", "leave", "delete", "remove_definitions"):
        monkeypatch.setattr(ecs, name, lambda _cloud, *words, name=name: made.calls.append(f"{name} {words[0]}"))
    monkeypatch.setattr(ecs, "state", lambda *_: "ACTIVE")
    return made


def a_join(tmp_path: Path, join: str = "", during: Callable[[], object] = lambda: None) -> Joining:
    made = a_proof(tmp_path, ())
    plan: Any = dict(made.plan or {}) | {"roles": [*ROLES, "node_ecs"]} | ROLE
    proof = Joining(plan, None, None, tmp_path, made.progress, ProofOptions(join=join))
    proof.finds, proof.during = {}, during
    return proof


def of_ecs(cloud: Cluster) -> list[str]:
    return [
        call for call in cloud.calls if call.partition(" ")[0] in ("create", "leave", "delete", "remove_definitions")
    ]


@pytest.mark.parametrize(
    ("join", "calls"),
    [
        ("", [f"create {OWN}", f"leave {OWN}", "remove_definitions run-1", f"delete {OWN}"]),
        ("gpu-nodes", ["leave gpu-nodes", "remove_definitions run-1"]),
    ],
)
def test_the_machine_leaves_before_it_ends(
    booted: None, tmp_path: Path, cloud: Cluster, join: str, calls: list[str]
) -> None:
    proof = a_join(tmp_path, join)
    report = prove_ami(proof, cloud, [KIND])
    assert of_ecs(cloud) == calls
    name = join or OWN
    order = [cloud.calls.index(call) for call in (f"launch {KIND}", f"leave {name}", f"terminate {FIRST}")]
    assert order == sorted(order)
    assert (
        f"ECS_CLUSTER={name}" in cloud.launches[0].user_data and '"gpu-ami.run": "run-1"' in cloud.launches[0].user_data
    )
    assert proof.seen and (proof.seen.service, proof.seen.cluster, proof.seen.run) == ("ecs", name, "run-1")
    (host,) = report.hosts
    assert host.facts["cluster"] == {
        "service": "ECS", "version": "", "name": name, "own": not join, "nodes": [FIRST],
    }  # fmt: skip
    assert next(row for row in report.tiers if row["name"] == "TN")["verdict"] == "PASS"


def test_without_join_the_node_is_in_no_cluster(booted: None, tmp_path: Path, cloud: Cluster) -> None:
    proof = a_join(tmp_path)
    proof.options = ProofOptions()
    prove_ami(proof, cloud, [KIND])
    assert of_ecs(cloud) == [] and "gpu-ami.run" not in cloud.launches[0].user_data


def test_ctrl_c_leaves_nothing(booted: None, tmp_path: Path, cloud: Cluster) -> None:
    proof = a_join(tmp_path)

    def press() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        proof.options.cancelled.wait(60)

    proof.during = press
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    with contextlib.ExitStack() as undone, pytest.raises(KeyboardInterrupt):
        undone.callback(signal.signal, signal.SIGINT, before)
        prove_ami(proof, cloud, [KIND])
    assert of_ecs(cloud) == [f"create {OWN}", f"leave {OWN}", "remove_definitions run-1", f"delete {OWN}"]
    assert not cloud.alive and cloud.calls[-1] == "delete_key"
    assert document.load(tmp_path / "report.json").incomplete == "the run was interrupted"


def test_what_cannot_be_removed_is_left_to_sweep(
    booted: None, tmp_path: Path, cloud: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The results count all the same, and the machine ends."""

    def refuse(*_: Any) -> None:
        raise CloudError("deregistering x from ECS cluster y: AccessDeniedException")

    monkeypatch.setattr(ecs, "leave", refuse)
    left = list[Path]()
    monkeypatch.setattr("gpu_ami.cloud.runs.leave_behind", left.append)
    report = prove_ami(a_join(tmp_path), cloud, [KIND])
    assert len(left) == 1 and not cloud.alive and cloud.calls[-1] == "delete_key"
    assert of_ecs(cloud)[-1] == f"delete {OWN}" and report.hosts[0].error == ""


def test_a_cluster_that_is_not_made_launches_nothing(
    booted: None, tmp_path: Path, cloud: Cluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: Any) -> None:
        raise CloudError("creating ECS cluster: AccessDeniedException")

    monkeypatch.setattr(ecs, "create", refuse)
    with pytest.raises(CloudError, match="creating ECS cluster"):
        prove_ami(a_join(tmp_path), cloud, [KIND])
    assert cloud.launches == [] and cloud.calls == ["import_key", "delete_key"]
