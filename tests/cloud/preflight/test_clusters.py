"""The cluster that `doctor --join` examines: there and ACTIVE, and what the role of a node may call."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.cloud import Cloud, preflight
from gpu_ami.cloud.preflight import clusters
from gpu_ami.cloud.preflight.findings import Scope
from tests.cloud.preflight.account import AGENT, Account
from tests.cloud.preflight.test_examination import account  # noqa: F401

ECS: Any = {"node_ecs": {"version": "", "accelerator": "nvidia"}}
CALLS = ["ecs:RegisterContainerInstance", "ecs:DiscoverPollEndpoint", "ecs:Poll", "ecs:Submit*"]
NODE = {"Effect": "Allow", "Action": CALLS}


def found(made: Account, join: str | None, plan: Any = ECS) -> list[str]:
    scope = Scope(made.cloud, plan, join=join)
    return [f"{row.level} {row.subject}: {row.found}" for row in clusters.cluster(scope)]


@pytest.fixture
def made(account: Account) -> Account:  # noqa: F811
    api = account.cloud.client("ecs")
    for name in ("gpu-nodes", "gone"):
        api.create_cluster(clusterName=name)
    api.delete_cluster(cluster="gone")
    account.policy({**AGENT, "Statement": [*AGENT["Statement"], NODE | {"Resource": "*"}]})  # type: ignore[misc]
    return account


ROLE = "ok role of gpu-node: allows what the ECS agent calls"


@pytest.mark.parametrize(
    ("join", "place_s", "first"),
    [
        ("gpu-nodes", "", "ok cluster: ECS cluster gpu-nodes is ACTIVE"),
        ("", "gpu-nodes", "ok cluster: ECS cluster gpu-nodes is ACTIVE"),
        ("", "", "ok cluster: a proof makes an ECS cluster of its own, which costs nothing"),
        ("other", "gpu-nodes", "error cluster: ECS cluster other is not there"),
        ("gone", "", "error cluster: ECS cluster gone is INACTIVE"),
    ],
)
def test_ecs(made: Account, join: str, place_s: str, first: str) -> None:
    made.change(cluster=place_s)
    assert found(made, join) == [first, ROLE]


def test_a_role_without_the_agent_s_calls(made: Account) -> None:
    made.policy(AGENT)
    rows = found(made, "gpu-nodes")[1:]
    assert rows == [f"error role of gpu-node: {action} is not allowed" for action in clusters.ECS_NEEDED]
    made.change(instance_profile="none-of-that-name")
    assert len(found(made, "")) == 1 + len(clusters.ECS_NEEDED)
    made.change(instance_profile=None)
    assert found(made, "")[1:] == ["error cluster: without an instance profile no agent registers"]


def test_nothing_is_said_where_no_cluster_is_asked_for(made: Account) -> None:
    assert found(made, None) == found(made, "", None) == []
    assert found(made, "", {"node_parallelcluster": {}}) == ["ok cluster: the machines of a proof are one of their own"]


def test_the_examination_has_it(made: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    findings = preflight.examine(made.cloud, made.plan | ECS, join="other")
    assert [row.found for row in findings if row.subject == "cluster"] == ["ECS cluster other is not there"]
    assert preflight.exit_code(findings) == 2 and isinstance(made.cloud, Cloud)
