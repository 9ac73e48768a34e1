"""The cluster that `doctor --join` examines: there and ACTIVE, and what the role of a node may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from botocore.exceptions import ClientError

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
    account.policy({**AGENT, "Statement": [*AGENT["Statement"], NODE | {"Resource": "*"}]})
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


EKS: Any = {"node_eks": {"version": "1.34"}}
EKS_CALLS = ["ec2:DescribeInstances", "ecr:GetAuthorizationToken", "ecr:BatchGet*", "ecr:GetDownloadUrlForLayer"]


class EksApi:
    """A cluster `training` with all that a node needs; a test changes what is wrong."""

    def __init__(self, vpc: str) -> None:
        network = {"vpcId": vpc, "clusterSecurityGroupId": "sg-cluster", "endpointPublicAccess": True}
        access = {"authenticationMode": "API"}
        self.cluster: dict[str, Any] = {
            "status": "ACTIVE", "version": "1.35", "resourcesVpcConfig": network, "accessConfig": access,
        }  # fmt: skip
        self.entry: str | None = "EC2_LINUX"
        self.added = ["coredns", "vpc-cni"]

    def describe_cluster(self, name: str) -> Any:
        if name != "training":
            raise ClientError({"Error": {"Code": "ResourceNotFoundException", "Message": "no"}}, "DescribeCluster")
        return {"cluster": self.cluster}

    def describe_access_entry(self, clusterName: str, principalArn: str) -> Any:
        assert clusterName == "training" and principalArn.endswith(":role/gpu-ami-node")
        if self.entry is None:
            raise ClientError({"Error": {"Code": "ResourceNotFoundException", "Message": "no"}}, "DescribeAccessEntry")
        return {"accessEntry": {"type": self.entry}}

    def get_paginator(self, operation: str) -> Any:
        assert operation == "list_addons"
        return self

    def paginate(self, clusterName: str) -> Any:
        return [{"addons": [name]} for name in self.added]


@pytest.fixture
def eks(account: Account, monkeypatch: pytest.MonkeyPatch) -> EksApi:  # noqa: F811
    api, real = EksApi(account.vpc), Cloud.client
    monkeypatch.setattr(Cloud, "client", lambda cloud, name: api if name == "eks" else real(cloud, name))
    node = {"Effect": "Allow", "Action": EKS_CALLS, "Resource": "*"}
    account.policy({**AGENT, "Statement": [*AGENT["Statement"], node]})
    account.change(security_group_ids=("sg-cluster",))
    return api


def test_an_eks_cluster_in_which_nothing_is_wrong(account: Account, eks: EksApi) -> None:  # noqa: F811
    arn = "arn:aws:iam::123456789012:role/gpu-ami-node"
    assert found(account, "training", EKS) == [
        "ok cluster: EKS cluster training is ACTIVE, version 1.35",
        f"ok cluster: has an access entry for {arn}",
        "ok role of gpu-node: allows what a node of EKS calls",
    ]


def _status(api: EksApi) -> None:
    api.cluster["status"] = "CREATING"


def _version(api: EksApi) -> None:
    api.cluster["version"] = "1.33"


def _issue(api: EksApi) -> None:
    api.cluster["health"] = {"issues": [{"code": "Ec2SubnetNotFound", "message": "gone"}]}


def _config_map(api: EksApi) -> None:
    api.cluster["accessConfig"]["authenticationMode"] = "CONFIG_MAP"


def _no_entry(api: EksApi) -> None:
    api.entry = None


def _entry_of_a_person(api: EksApi) -> None:
    api.entry = "STANDARD"


def _other_vpc(api: EksApi) -> None:
    api.cluster["resourcesVpcConfig"]["vpcId"] = "vpc-other"


def _other_group(api: EksApi) -> None:
    api.cluster["resourcesVpcConfig"]["clusterSecurityGroupId"] = "sg-other"


def _private(api: EksApi) -> None:
    api.cluster["resourcesVpcConfig"]["endpointPublicAccess"] = False


def _no_plugin(api: EksApi) -> None:
    api.added = ["coredns"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_status, "error cluster: EKS cluster training is CREATING"),
        (_version, "error cluster: EKS cluster training is ACTIVE, version 1.33"),
        (_issue, "warning cluster: EKS reports of it: Ec2SubnetNotFound: gone"),
        (_config_map, "warning cluster: access entries do not count (CONFIG_MAP)"),
        (_no_entry, "error cluster: no access entry for arn:aws:iam::123456789012:role/gpu-ami-node"),
        (
            _entry_of_a_person,
            "error cluster: the access entry of arn:aws:iam::123456789012:role/gpu-ami-node has type ST",
        ),
        (_other_vpc, "error subnet_id: subnet-"),
        (_other_group, "warning security_group_ids: the cluster's security group sg-other is not among them"),
        (_private, "warning cluster: the API of training can be reached from its VPC alone"),
        (_no_plugin, "warning cluster: it has no add-on vpc-cni"),
    ],
)
def test_eks(account: Account, eks: EksApi, change: Callable[[EksApi], None], expected: str) -> None:  # noqa: F811
    change(eks)
    wrong = [row for row in found(account, "training", EKS) if not row.startswith("ok ")]
    assert len(wrong) == 1 and wrong[0].startswith(expected), wrong


def test_without_an_eks_cluster_s_name(account: Account, eks: EksApi) -> None:  # noqa: F811
    assert found(account, "", EKS)[0] == "error cluster: none, and a proof makes no EKS cluster on AWS"
    assert found(account, "gone", EKS)[0] == "error cluster: EKS cluster gone is not there"
    account.change(cluster_versions=("1.34",))
    assert found(account, "", EKS)[0] == "ok cluster: a proof starts an EKS cluster of version 1.34"


def test_a_role_without_a_node_s_calls(account: Account, eks: EksApi) -> None:  # noqa: F811
    account.policy(AGENT)
    rows = [row for row in found(account, "training", EKS) if row.startswith("error")]
    assert rows == [f"error role of gpu-node: {action} is not allowed" for action in clusters.EKS_NEEDED]
    account.change(instance_profile=None)
    assert found(account, "training", EKS)[-1] == "error cluster: without an instance profile no node joins"
