"""The cluster that `doctor --join` examines: there and ACTIVE, and what the role of a node may call."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from gpu_ami.cloud import Cloud, preflight
from gpu_ami.cloud.preflight import clusters
from gpu_ami.cloud.preflight.findings import Level, Scope
from gpu_ami.errors import CloudError
from tests.aws_requests import Checked
from tests.cloud.preflight.account import AGENT, Account, refusal, security_group
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
    """A cluster `training` with all that a node needs; a test changes it. refuses: operation → error code."""

    def __init__(self, vpc: str) -> None:
        self.refuses: dict[str, str] = {}
        network = {"vpcId": vpc, "endpointPublicAccess": True, "endpointPrivateAccess": True}
        access = {"authenticationMode": "API"}
        self.cluster: dict[str, Any] = {
            "status": "ACTIVE", "version": "1.35", "resourcesVpcConfig": network, "accessConfig": access,
        }  # fmt: skip
        self.entry: str | None = "EC2_LINUX"
        self.added = {"coredns": "DEGRADED", "kube-proxy": "ACTIVE", "vpc-cni": "ACTIVE"}

    @property
    def network(self) -> dict[str, Any]:
        return dict(self.cluster["resourcesVpcConfig"])

    def change_network(self, **changes: Any) -> None:
        self.cluster["resourcesVpcConfig"].update(changes)

    def _ask(self, operation: str, *, there: bool = True) -> None:
        if operation in self.refuses:
            raise refusal(self.refuses[operation], operation)
        if not there:
            raise refusal("ResourceNotFoundException", operation)

    def describe_cluster(self, name: str) -> Any:
        self._ask("DescribeCluster", there=name == "training")
        return {"cluster": self.cluster}

    def describe_access_entry(self, clusterName: str, principalArn: str) -> Any:
        assert clusterName == "training" and principalArn.endswith(":role/gpu-ami-node")
        self._ask("DescribeAccessEntry", there=self.entry is not None)
        return {"accessEntry": {"type": self.entry}}

    def describe_addon(self, clusterName: str, addonName: str) -> Any:
        assert clusterName == "training"
        self._ask("DescribeAddon", there=addonName in self.added)
        status = self.added[addonName]
        issues = [] if status == "ACTIVE" else [{"code": "ConfigurationConflict", "message": "of aws-node"}]
        return {"addon": {"status": status, "health": {"issues": issues}}}

    def list_addons(self, clusterName: str) -> Any:
        assert clusterName == "training"
        self._ask("ListAddons")
        return [{"addons": [name]} for name in self.added]


def allow(made: Account, direction: str, group: str, protocol: str = "-1", port: int = 0, **peer: Any) -> None:
    """Adds a rule: all traffic, or a TCP port; peer: UserIdGroupPairs or IpRanges."""
    rule = {"IpProtocol": protocol, **({"FromPort": port, "ToPort": port} if port else {}), **peer}
    getattr(made.ec2, f"authorize_security_group_{direction}")(GroupId=group, IpPermissions=[rule])


def members(group: str) -> dict[str, Any]:
    return {"UserIdGroupPairs": [{"GroupId": group}]}


@pytest.fixture
def eks(account: Account, monkeypatch: pytest.MonkeyPatch) -> EksApi:  # noqa: F811
    api, real = EksApi(account.vpc), Cloud.client
    stub = Checked.of("eks", api)
    monkeypatch.setattr(Cloud, "client", lambda cloud, name: stub if name == "eks" else real(cloud, name))
    node = {"Effect": "Allow", "Action": EKS_CALLS, "Resource": "*"}
    account.policy({**AGENT, "Statement": [*AGENT["Statement"], node]})
    # As EKS makes it: all traffic from itself and to itself, and to anywhere.
    group = security_group(account, account.vpc, "")
    for direction in ("ingress", "egress"):
        allow(account, direction, group, **members(group))
    api.change_network(clusterSecurityGroupId=group)
    account.change(security_group_ids=(group,))
    return api


def test_an_eks_cluster_in_which_nothing_is_wrong(account: Account, eks: EksApi) -> None:  # noqa: F811
    arn = "arn:aws:iam::123456789012:role/gpu-ami-node"
    group = eks.network["clusterSecurityGroupId"]
    for mode in ("API", "API_AND_CONFIG_MAP"):
        eks.cluster["accessConfig"]["authenticationMode"] = mode
        assert found(account, "training", EKS) == [
            "ok cluster: EKS cluster training is ACTIVE, version 1.35",
            f"ok cluster: has an access entry for {arn}",
            f"ok security_group_ids: {group} and the cluster's {group} let nodes and API server reach each other",
            f"ok security_group_ids: {group} allow all traffic of their own members",
            "ok cluster: its add-ons vpc-cni and kube-proxy are ACTIVE",
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
    api.refuses["DescribeAccessEntry"] = "InvalidRequestException"


def _no_entry(api: EksApi) -> None:
    api.entry = None


def _no_entry_but_perhaps_a_line(api: EksApi) -> None:
    api.cluster["accessConfig"]["authenticationMode"] = "API_AND_CONFIG_MAP"
    api.entry = None


def _entry_of_a_person(api: EksApi) -> None:
    api.entry = "STANDARD"


def _entry_before_a_line(api: EksApi) -> None:
    api.cluster["accessConfig"]["authenticationMode"] = "API_AND_CONFIG_MAP"
    api.entry = "STANDARD"


def _other_vpc(api: EksApi) -> None:
    api.change_network(vpcId="vpc-other")


def _private(api: EksApi) -> None:
    api.change_network(endpointPublicAccess=False)


def _no_plugin(api: EksApi) -> None:
    del api.added["vpc-cni"]


def _no_proxy(api: EksApi) -> None:
    del api.added["kube-proxy"]


def _degraded(api: EksApi) -> None:
    api.added["vpc-cni"] = "DEGRADED"


def _no_names(api: EksApi) -> None:
    api.refuses["ListAddons"] = "AccessDeniedException"


def _no_status(api: EksApi) -> None:
    api.refuses["DescribeAddon"] = "AccessDeniedException"


ARN = "arn:aws:iam::123456789012:role/gpu-ami-node"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (_status, "error cluster: EKS cluster training is CREATING"),
        (_version, "error cluster: EKS cluster training is ACTIVE, version 1.33"),
        (_issue, "warning cluster: EKS reports of it: Ec2SubnetNotFound: gone"),
        (_config_map, "warning cluster: access entries do not count (CONFIG_MAP)"),
        (_no_entry, f"error cluster: no access entry for {ARN}"),
        (_no_entry_but_perhaps_a_line, f"warning cluster: no access entry for {ARN}"),
        (_entry_of_a_person, f"error cluster: the access entry of {ARN} has type STANDARD"),
        (_entry_before_a_line, f"error cluster: the access entry of {ARN} has type STANDARD"),
        (_other_vpc, "error subnet_id: subnet-"),
        (_private, "warning cluster: the API of training can be reached from its VPC alone"),
        (_no_plugin, "warning cluster: it has no add-on vpc-cni"),
        (_no_proxy, "warning cluster: it has no add-on kube-proxy"),
        (_degraded, "warning cluster: its add-on vpc-cni is DEGRADED: ConfigurationConflict: of aws-node"),
        (_no_names, "warning add-ons of the cluster: not examined: "),
        (_no_status, "warning add-ons of the cluster: not examined: "),
    ],
)
def test_eks(account: Account, eks: EksApi, change: Callable[[EksApi], None], expected: str) -> None:  # noqa: F811
    change(eks)
    wrong = [row for row in found(account, "training", EKS) if not row.startswith("ok ")]
    assert len(wrong) == 1 and wrong[0].startswith(expected), wrong
    code = preflight.exit_code(preflight.examine_cluster(account.cloud, account.plan | EKS, "training"))
    assert code == (2 if expected.startswith("error") else 0)


@pytest.mark.parametrize("operation", ["DescribeCluster", "DescribeAccessEntry"])
def test_a_call_that_aws_refuses_to_a_run_too(account: Account, eks: EksApi, operation: str) -> None:  # noqa: F811
    """A run would end with it, so it is no warning: exit code 4. What else is wrong is told all the same."""
    eks.refuses[operation] = "AccessDeniedException"
    findings = preflight.examine_cluster(account.cloud, account.plan | EKS, "training")
    (refused,) = [row for row in findings if row.level is Level.ERROR]
    assert "not examined: " in refused.found and refused.refused and preflight.exit_code(findings) == 4
    subjects = {row.subject for row in findings}
    assert "role of gpu-node" in subjects and (operation == "DescribeCluster" or "security_group_ids" in subjects)


def test_ecs_that_refuses(made: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> str:
        raise CloudError("looking up ECS cluster x: AccessDeniedException", code="AccessDeniedException")

    monkeypatch.setattr("gpu_ami.cloud.ecs.state", refuse)
    assert preflight.exit_code(preflight.examine_cluster(made.cloud, made.plan | ECS, "x")) == 4


ANYWHERE = {"IpRanges": [{"CidrIp": "0.0.0.0/0"}]}


def groups_of(made: Account, eks: EksApi, *rules: tuple[str, str, int]) -> tuple[str, str]:
    """A group of nodes and one of the cluster, with rules (direction, whose, TCP port) for members of the other."""
    both = {
        name: made.ec2.create_security_group(GroupName=name, Description="d", VpcId=made.vpc)["GroupId"]
        for name in ("nodes", "cluster")
    }
    for group in both.values():
        made.ec2.revoke_security_group_egress(GroupId=group, IpPermissions=[{"IpProtocol": "-1", **ANYWHERE}])
    for direction, name, port in rules:
        (other,) = [group for key, group in both.items() if key != name]
        allow(made, direction, both[name], "tcp", port, **members(other))
    eks.change_network(clusterSecurityGroupId=both["cluster"])
    made.change(security_group_ids=(both["nodes"],))
    return both["nodes"], both["cluster"]


TO_API = (("egress", "nodes", 443), ("ingress", "cluster", 443))
TO_NODE = (("egress", "cluster", 10250), ("ingress", "nodes", 10250))
BOTH_WAYS = "ok security_group_ids: {0} and the cluster's {1} let nodes and API server reach"
NO_WAY_IN = "error security_group_ids: no rules let members of {0} reach the API server (TCP 443 of {1})"
NO_WAY_BACK = "warning security_group_ids: no rules let the API server ({1}) reach kubelet (TCP 10250 of {0})"


@pytest.mark.parametrize(
    ("rules", "private", "expected"),
    [
        ((*TO_API, *TO_NODE), True, [BOTH_WAYS]),
        (TO_API, True, [NO_WAY_BACK]),
        (TO_NODE, True, [NO_WAY_IN]),
        ((TO_API[0], *TO_NODE), True, [NO_WAY_IN]),
        ((TO_API[1], *TO_NODE), True, [NO_WAY_IN]),
        ((TO_NODE[0], *TO_API), True, [NO_WAY_BACK]),
        ((), True, [NO_WAY_IN, NO_WAY_BACK]),
        (TO_NODE, False, [BOTH_WAYS]),  # nodes reach an API that has no address in the VPC from outside
    ],
)
def test_groups_between_nodes_and_api_server(
    account: Account,  # noqa: F811
    eks: EksApi,
    rules: Any,
    private: bool,
    expected: list[str],
) -> None:
    names = groups_of(account, eks, *rules)
    eks.change_network(endpointPrivateAccess=private)
    rows = [row for row in found(account, "training", EKS) if "security_group_ids" in row and "own members" not in row]
    assert len(rows) == len(expected)
    for row, text in zip(rows, expected, strict=True):
        assert row.startswith(text.format(*names)), rows


def test_a_network_in_a_rule_may_be_the_nodes(account: Account, eks: EksApi) -> None:  # noqa: F811
    names = groups_of(account, eks, *TO_NODE, TO_API[0])
    allow(account, "ingress", names[1], "tcp", 443, IpRanges=[{"CidrIp": "10.0.0.0/16"}])
    assert any(row.startswith(BOTH_WAYS.format(*names)) for row in found(account, "training", EKS))


def test_further_groups_of_the_control_plane_count(account: Account, eks: EksApi) -> None:  # noqa: F811
    nodes, cluster = groups_of(account, eks, *TO_API, *TO_NODE)
    eks.change_network(clusterSecurityGroupId=security_group(account, account.vpc, "", 1), securityGroupIds=[cluster])
    assert any(row.startswith(f"ok security_group_ids: {nodes} and") for row in found(account, "training", EKS))


@pytest.mark.parametrize(
    ("efa", "directions", "expected"),
    [
        (True, ("ingress", "egress"), "ok security_group_ids: {} allow all traffic of their own members"),
        (True, ("ingress",), "warning security_group_ids: {}: no outbound rule for all traffic of its own members"),
        (True, ("egress",), "warning security_group_ids: {}: no inbound rule for all traffic of its own members"),
        (False, ("ingress",), "ok security_group_ids: {} allow all traffic of their own members"),
    ],
)
def test_own_traffic_of_one_node(
    account: Account,  # noqa: F811
    eks: EksApi,
    efa: bool,
    directions: tuple[str, ...],
    expected: str,
) -> None:
    """The other nodes of the cluster are the peers of one machine; with --nodes it is an error of `security_group_ids`.

    Without EFA a rule for every address is enough, which each new group has for outbound traffic.
    """
    group = security_group(account, account.vpc, "", 1)
    for direction in directions:
        allow(account, direction, group, **members(group))
    account.change(security_group_ids=(group,))
    plan = EKS | ({"efa": {}} if efa else {})
    rows = [row for row in found(account, "training", plan) if "own members" in row]
    assert rows == [expected.format(group)]
    scope = Scope(account.cloud, plan, nodes=2, join="training")
    assert not [row for row in clusters.cluster(scope) if "own members" in row.found]


def test_without_an_eks_cluster_s_name(account: Account, eks: EksApi) -> None:  # noqa: F811
    assert found(account, "", EKS)[0] == "error cluster: none, and a proof makes no EKS cluster on AWS"
    assert found(account, "gone", EKS)[0] == "error cluster: EKS cluster gone is not there"
    account.change(cluster_versions=("1.34",))
    assert found(account, "", EKS)[0] == "ok cluster: a proof starts an EKS cluster of version 1.34"


def test_a_role_without_a_node_s_calls(account: Account, eks: EksApi) -> None:  # noqa: F811
    account.policy(AGENT)
    rows = [row for row in found(account, "training", EKS) if row.startswith("error")]
    assert rows == [f"error role of gpu-node: {action} is not allowed" for action in clusters.NEEDED]
    account.change(instance_profile=None)
    assert found(account, "training", EKS)[-1] == "error cluster: without an instance profile no node joins"


def test_a_profile_that_does_not_exist_hides_nothing(account: Account, eks: EksApi) -> None:  # noqa: F811
    account.change(instance_profile="none-of-that-name")
    rows = found(account, "training", EKS)
    assert [row for row in rows if row.startswith("error")] == [
        f"error role of none-of-that-name: {action} is not allowed" for action in clusters.NEEDED
    ]
    assert any("kube-proxy are ACTIVE" in row for row in rows)
