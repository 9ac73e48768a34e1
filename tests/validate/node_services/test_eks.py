"""Nodes of EKS: what is refused before a launch, the cluster of a proof, and what a run takes out of it."""

from __future__ import annotations

import base64
import functools
from dataclasses import replace
from typing import Any

import pytest

from gpu_ami.cloud import Cluster, Place, eks
from gpu_ami.errors import CloudError, UsageError
from gpu_ami.validate import node_services as nodes_of_eks
from gpu_ami.validate.node_services import Proven
from tests.aws_requests import Checked
from validator.probes.cluster.kubernetes import ApiError

ROLE = "arn:aws:iam::123456789012:role/nodes"
PLAN: Any = {"node_eks": {"version": "1.34"}, "node": {"family": "eks"}}
PLACE = Place(name="p", region="us-east-1", instance_profile="nodes")
LOCAL = replace(
    PLACE,
    clusters=replace(PLACE.clusters, versions=("1.34",), guest_endpoint="https://169.254.169.250"),
    machines=replace(PLACE.machines, simulated=True),
)


class Aws:
    """EKS and IAM. clusters: what describe_cluster answers, by name; entries: role → type of its access entry."""

    def __init__(self, place: Place = PLACE, **clusters: dict[str, Any]) -> None:
        self.place, self.clusters = place, clusters
        self.entries: dict[str, str] = {ROLE: "EC2_LINUX"}
        self.roles: list[dict[str, str]] | None = [{"Arn": ROLE}]
        self.calls: list[str] = []
        self.status = "ACTIVE"

    def client(self, service: str) -> Any:
        return Checked.of(service, self)

    def get_instance_profile(self, **_: str) -> Any:
        if self.roles is None:
            raise CloudError("no profile", code="NoSuchEntity")
        return {"InstanceProfile": {"Roles": self.roles}}

    def describe_cluster(self, name: str) -> Any:
        if name not in self.clusters:
            raise CloudError("no cluster", code="ResourceNotFoundException")
        return {"cluster": self.clusters[name]}

    def describe_access_entry(self, principalArn: str, **_: str) -> Any:
        if principalArn not in self.entries:
            raise CloudError("no entry", code="ResourceNotFoundException")
        return {"accessEntry": {"type": self.entries[principalArn]}}

    def create_cluster(self, name: str, version: str, **_: Any) -> None:
        self.calls.append(f"create {version}")
        self.clusters[name] = a_cluster(version=version, status=self.status)

    def create_access_entry(self, principalArn: str, type: str, **_: Any) -> None:
        self.calls.append(f"admit {principalArn} {type}")

    def delete_cluster(self, name: str) -> None:
        self.calls.append("delete")
        if self.clusters.pop(name, None) is None:
            raise CloudError("no cluster", code="ResourceNotFoundException")


def a_cluster(**values: Any) -> dict[str, Any]:
    authority = {"data": base64.b64encode(b"PEM").decode()}
    network = {"serviceIpv4Cidr": "10.100.0.0/16"}
    access = {"authenticationMode": values.pop("mode", "API")}
    described = {"status": "ACTIVE", "version": "1.34", "endpoint": "https://e", "certificateAuthority": authority}
    return described | {"kubernetesNetworkConfig": network, "accessConfig": access} | values


@pytest.mark.parametrize(
    ("aws", "name", "message", "hint"),
    [
        (Aws(), "x", "--join x: the EKS cluster is not in us-east-1", "that region"),
        (Aws(x=a_cluster(status="UPDATING")), "x", "is UPDATING, expected ACTIVE", ""),
        (
            Aws(x=a_cluster(version="1.33")),
            "x",
            "the cluster has Kubernetes 1.33, the plan's kubelet 1.34",
            "never newer",
        ),
        (Aws(x=a_cluster(version="1.38")), "x", "the cluster has Kubernetes 1.38", "at most 3 minor versions older"),
        (Aws(), "", "p starts no EKS cluster of version 1.34 for a proof", "--join CLUSTER"),
        (Aws(replace(PLACE, instance_profile=None)), "x", "need an instance profile", "instance_profile"),
        (
            Aws(replace(LOCAL, clusters=replace(LOCAL.clusters, versions=()))),
            "",
            "p starts no EKS cluster of version 1.34 for a proof",
            "make nodes",
        ),
    ],
)
def test_refusals(aws: Any, name: str, message: str, hint: str) -> None:
    with pytest.raises(UsageError) as caught:
        nodes_of_eks.Eks().require(PLAN, aws, name)
    assert message in caught.value.message and hint in caught.value.hint and caught.value.exit_code == 2


def test_a_role_that_may_not_join_is_refused_with_the_command_that_admits_it() -> None:
    aws: Any = Aws(x=a_cluster())
    aws.entries.clear()
    with pytest.raises(UsageError, match="no access entry for arn:aws:iam") as caught:
        nodes_of_eks.Eks().require(PLAN, aws, "x")
    assert caught.value.hint.endswith(f"--cluster-name x --principal-arn {ROLE} --type EC2_LINUX")
    for roles in ([], None):
        aws.roles = roles
        with pytest.raises(UsageError, match="instance profile nodes does not exist or has no role"):
            nodes_of_eks.Eks().require(PLAN, aws, "x")


@pytest.mark.parametrize(
    ("network", "cidr"),
    [
        ({"serviceIpv4Cidr": "10.100.0.0/16", "ipFamily": "ipv4"}, "10.100.0.0/16"),
        ({"serviceIpv6Cidr": "fd30:1c53:5f8a::/108", "ipFamily": "ipv6"}, "fd30:1c53:5f8a::/108"),
    ],
)
def test_nodes_get_the_network_of_services_of_either_family(network: dict[str, str], cidr: str) -> None:
    aws: Any = Aws(x=a_cluster(kubernetesNetworkConfig=network))
    found = eks.describe(aws, "x")
    assert found is not None and found.cidr == cidr


@pytest.mark.parametrize("mode", ["API", "API_AND_CONFIG_MAP"])
def test_an_entry_that_is_of_no_node_is_refused(mode: str) -> None:
    """With such an entry EKS gives the role no node's rights, whatever the ConfigMap says."""
    aws: Any = Aws(x=a_cluster(mode=mode))
    aws.entries[ROLE] = "STANDARD"
    with pytest.raises(UsageError, match=f"the access entry of {ROLE} has type STANDARD, so no node can") as caught:
        nodes_of_eks.Eks().require(PLAN, aws, "x")
    deleted = f"aws eks delete-access-entry --cluster-name x --principal-arn {ROLE}"
    assert caught.value.hint.startswith(f"{deleted} && aws eks create-access-entry ") and caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("aws", "name", "entries"),
    [
        (Aws(x=a_cluster()), "x", {ROLE: "EC2_LINUX"}),
        (Aws(x=a_cluster(version="1.37")), "x", {ROLE: "EC2_LINUX"}),
        (Aws(x=a_cluster(mode="CONFIG_MAP")), "x", {}),
        (Aws(x=a_cluster(mode="API_AND_CONFIG_MAP")), "x", {}),  # the ConfigMap may have it
        (Aws(LOCAL), "", {ROLE: "EC2_LINUX"}),
    ],
)
def test_what_is_accepted(aws: Any, name: str, entries: dict[str, str]) -> None:
    aws.entries = entries
    nodes_of_eks.Eks().require(PLAN, aws, name)


def test_where_join_needs_no_name() -> None:
    service = nodes_of_eks.Eks()
    assert service.is_ready(PLAN, LOCAL) and service.is_ready(
        PLAN, replace(PLACE, clusters=replace(PLACE.clusters, name="x"))
    )
    assert not service.is_ready(PLAN, PLACE) and (service.name_of("a", "b"), service.name_of("", "b")) == ("a", "b")


class Run:
    id = "20261125-a"


def proven(aws: Any) -> Proven:
    return Proven(PLAN, "ami-1", aws, Run(), {"gpu-ami": "x"})  # type: ignore[arg-type]


def test_an_own_cluster_is_made_admits_the_nodes_and_is_removed() -> None:
    aws = Aws(LOCAL)
    service = nodes_of_eks.Eks()
    with service.opened(proven(aws), "", lambda remove: remove()) as cluster:
        assert (cluster.service, cluster.version, cluster.own) == ("EKS", "1.34", True)
        assert cluster.node and cluster.node["joined_at"] == "https://169.254.169.250"
        file = service.described(proven(aws), cluster, ())
        assert (file.service, file.endpoint, file.region, file.run) == ("eks", "https://e", "us-east-1", "20261125-a")
        service.leave(aws, cluster, ["i-1"])  # type: ignore[arg-type]
    assert aws.calls == ["create 1.34", f"admit {ROLE} EC2_LINUX", "delete"] and not aws.clusters


def test_an_own_cluster_that_fails_is_removed() -> None:
    aws = Aws(LOCAL)
    aws.status = "FAILED"
    with (
        pytest.raises(CloudError, match="is FAILED, expected ACTIVE"),
        nodes_of_eks.Eks().opened(proven(aws), "", lambda remove: remove()),
    ):
        pass
    assert aws.calls[-1] == "delete"


def test_a_cluster_of_others_stays() -> None:
    aws = Aws(x=a_cluster())
    with nodes_of_eks.Eks().opened(proven(aws), "x", lambda remove: remove()) as cluster:
        assert not cluster.own and cluster.node and cluster.node["joined_at"] == "https://e"
    assert aws.calls == []


class Api:
    """A cluster with a pod of the run, our node and another one that has the label."""

    def __init__(self, error: ApiError | None = None) -> None:
        self.deleted, self.error, self.asked = list[str](), error, list[str]()

    def get(self, path: str, labelSelector: str) -> Any:
        if self.error:
            raise self.error
        self.asked.append(labelSelector)
        node = functools.partial(dict, metadata={"name": "n"})
        if path.endswith("/nodes"):
            ours = node(spec={"providerID": "aws:///a/i-1"})
            return {"items": [ours, {"metadata": {"name": "m"}, "spec": {"providerID": "aws:///a/i-2"}}]}
        return {"items": [{"metadata": {"name": "p"}}]}

    def delete(self, path: str, grace_seconds: int | None = None) -> bool:
        self.deleted.append(path.rpartition("/")[2])
        return grace_seconds is not None


def test_leaving_removes_pods_of_the_run_and_our_node_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    api = Api()
    monkeypatch.setattr(eks, "api", lambda *_: api)
    cluster = Cluster("EKS", "x", "r", node={"endpoint": "https://e", "authority": "UEVN"})
    nodes_of_eks.Eks().leave(Aws(), cluster, ["i-1"])  # type: ignore[arg-type]
    assert api.deleted == ["p", "n"] and set(api.asked) == {"gpu-ami.run=r"}
    api.error = ApiError("GET /x", 403, "Forbidden", "no")
    with pytest.raises(CloudError, match="EKS cluster x: GET /x: Forbidden: no"):
        nodes_of_eks.Eks().leave(Aws(), cluster, ["i-1"])  # type: ignore[arg-type]
