"""The cluster that `--join` names: it is there, and a node and the caller may do there what a proof needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from gpu_ami.cloud import ecs, eks
from gpu_ami.cloud import security_groups as ec2_groups
from gpu_ami.cloud.preflight import identity
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, examined, ok, warning
from validator.plan_document import section

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import SecurityGroupTypeDef

# What a node calls with its role (EKS user guide, "Amazon EKS node IAM role"). Calls of the network plug-in are not
# examined: a cluster may give it a role of its own.
NEEDED = {
    "ec2:DescribeInstances": "nodeadm learns the node's name",
    "ecr:GetAuthorizationToken": "kubelet may pull images of EKS",
    "ecr:BatchGetImage": "kubelet may pull images of EKS",
    "ecr:GetDownloadUrlForLayer": "kubelet may pull images of EKS",
}
_POLICY = "attach AWS's policies AmazonEKSWorkerNodePolicy and AmazonEC2ContainerRegistryPullOnly"
# Without either no node is Ready: the plug-in reaches the API server by the address that the proxy serves.
_ADDONS = ("vpc-cni", "kube-proxy")
# Ports of the least rules (EKS user guide, "View Amazon EKS security group requirements for clusters").
_API_PORT, _KUBELET_PORT = 443, 10250


def examine(scope: Scope, name: str) -> Iterator[Finding]:
    """name: of the cluster, "" where none was given."""
    version = str(section(scope.plan, "node_eks")["version"]) if scope.plan else ""
    active: list[eks.Described] = []
    if name:
        yield from examined("cluster", functools.partial(_state, scope, name, version, active), decisive=True)
    elif version in scope.place.clusters.versions:
        yield ok("cluster", f"a proof starts an EKS cluster of version {version}")
    else:
        remedy = "--join CLUSTER, or `cluster` in the --where file"
        yield error("cluster", "none, and a proof makes no EKS cluster on AWS", "the name of a cluster", remedy)
    for found in active:
        yield from examined("access entry", functools.partial(_access_entry, scope, found), decisive=True)
        yield from examined("network of the cluster", functools.partial(_network, scope, found))
        yield from examined("add-ons of the cluster", functools.partial(_addons, scope, found))
    if not scope.place.instance_profile:
        remedy = "set instance_profile to one with the role of the cluster's nodes"
        yield error("cluster", "without an instance profile no node joins", "a profile", remedy)
        return
    yield from identity.role_allows(scope, NEEDED, _POLICY, "what a node of EKS calls")


def _state(scope: Scope, name: str, version: str, active: list[eks.Described]) -> Iterator[Finding]:
    """The cluster is there and ACTIVE, with a version for the plan's kubelet; it is added to `active` then."""
    found = eks.describe(scope.cloud, name)
    if found is None or found.status != eks.ACTIVE:
        state = found.status if found else "not there"
        yield error("cluster", f"EKS cluster {name} is {state}", f"an {eks.ACTIVE} cluster", "name another one")
        return
    active.append(found)
    text = f"EKS cluster {name} is {eks.ACTIVE}, version {found.version}"
    if eks.fits(found.version, version):
        yield ok("cluster", text)
    else:
        yield error("cluster", text, f"one in which a kubelet {version} may run", eks.SKEW)
    for issue in found.issues:
        yield warning("cluster", f"EKS reports of it: {issue}")


def _access_entry(scope: Scope, found: eks.Described) -> Iterator[Finding]:
    """The role of a node may join the cluster."""
    role = eks.node_role(scope.cloud)
    if not role:  # a finding of the instance profile
        return
    if found.mode == eks.CONFIG_MAP:
        text = f"access entries do not count ({found.mode}): whether {role} may join is in its ConfigMap aws-auth"
        yield warning("cluster", text, remedy="not read here; add the role there, or change the authentication mode")
        return
    kind = eks.access_type(scope.cloud, found.name, role)
    refusal = eks.refusal_of(found, role, kind)
    if refusal:
        yield error("cluster", refusal, f"one of type {eks.NODES}", eks.how_to_admit(found.name, role, kind))
    elif kind is None:
        text = f"no access entry for {role}: whether it may join is in its ConfigMap aws-auth ({found.mode})"
        yield warning("cluster", text, remedy=f"not read here; or {eks.how_to_admit(found.name, role)}")
    else:
        yield ok("cluster", f"has an access entry for {role}")


def _network(scope: Scope, found: eks.Described) -> Iterator[Finding]:
    """A node reaches the API server, and the API server and other nodes reach the node."""
    named = [subnet for subnet in scope.place.network.subnets if subnet]
    if named and found.vpc:
        for row in scope.ec2.describe_subnets(SubnetIds=named)["Subnets"]:
            if row["VpcId"] != found.vpc:
                text = f"{row['SubnetId']} is in {row['VpcId']}, the cluster in {found.vpc}"
                yield error("subnet_id", text, "a subnet of the cluster's VPC", "correct subnet_id or the cluster")
    if not found.public:
        text = f"the API of {found.name} can be reached from its VPC alone"
        remedy = "run gpu-ami where the VPC is reached; nodes and pods are read through it"
        yield warning("cluster", text, remedy=remedy)
    own = list(scope.place.network.security_group_ids) or [scope.cloud.default_security_group()]
    rows = {row["GroupId"]: row for row in scope.cloud.security_groups([*own, *found.security_groups])}
    nodes, servers = ([rows[name] for name in names if name in rows] for names in (own, found.security_groups))
    if nodes and servers:
        yield from _between(found, nodes, servers)
    if nodes and scope.nodes == 1:  # of several machines it is an error, of network.security_groups
        yield from _own_traffic(scope, nodes)


def _between(
    found: eks.Described, nodes: Sequence[SecurityGroupTypeDef], servers: Sequence[SecurityGroupTypeDef]
) -> Iterator[Finding]:
    """Rules for node → API server, where that has an address in the VPC, and for API server → kubelet."""
    subject, own, theirs = "security_group_ids", _names(nodes), _names(servers)
    remedy = f"add {found.security_groups[0]}, the cluster's group, to security_group_ids"
    to_server = not found.private or ec2_groups.may_reach(nodes, servers, _API_PORT)
    to_kubelet = ec2_groups.may_reach(servers, nodes, _KUBELET_PORT)
    if not to_server:
        text = f"no rules let members of {own} reach the API server (TCP {_API_PORT} of {theirs})"
        yield error(subject, text, "such rules, out of the one and into the other", remedy)
    if not to_kubelet:  # a proof reads what its pods printed without it
        text = f"no rules let the API server ({theirs}) reach kubelet (TCP {_KUBELET_PORT} of {own})"
        yield warning(subject, text, "such rules, for kubectl logs and exec", remedy)
    if to_server and to_kubelet:
        yield ok(subject, f"{own} and the cluster's {theirs} let nodes and API server reach each other")


def _own_traffic(scope: Scope, nodes: Sequence[SecurityGroupTypeDef]) -> Iterator[Finding]:
    """Nodes of one cluster may send everything to each other, as EKS's own group lets them."""
    subject, names = "security_group_ids", _names(nodes)
    closed = ec2_groups.own_traffic(nodes, efa=bool(scope.plan and "efa" in scope.plan))
    for name in closed:
        text = f"{names}: no {name}bound rule for all traffic of its own members"
        yield warning(subject, text, "such a rule, so that nodes of the cluster reach each other", "add it")
    if not closed:
        yield ok(subject, f"{names} allow all traffic of their own members")


def _names(groups: Sequence[SecurityGroupTypeDef]) -> str:
    return ", ".join(group["GroupId"] for group in groups)


def _addons(scope: Scope, found: eks.Described) -> Iterator[Finding]:
    """The add-ons without which no node is Ready."""
    installed = eks.addons(scope.cloud, found.name)
    good = True
    for name in _ADDONS:
        if name not in installed:
            good = False
            remedy = "no node is Ready without it; one that was installed in another way is not seen here"
            yield warning("cluster", f"it has no add-on {name}", remedy=remedy)
            continue
        addon = eks.addon(scope.cloud, found.name, name)
        if addon.status != eks.ACTIVE:
            good = False
            text = ": ".join([f"its add-on {name} is {addon.status}", *addon.issues])
            yield warning("cluster", text, f"an add-on that is {eks.ACTIVE}")
    if good:
        yield ok("cluster", f"its add-ons {' and '.join(_ADDONS)} are {eks.ACTIVE}")


# What the ECS agent calls, and what is missing without it. The role of the instance profile has it by AWS's policy
# AmazonEC2ContainerServiceforEC2Role (its copy in moto 5.2, moto/iam/aws_managed_policies.py, read 2026-11-26).
ECS_NEEDED = {
    "ecs:RegisterContainerInstance": "the machine registers",
    "ecs:DiscoverPollEndpoint": "the agent finds its endpoint",
    "ecs:Poll": "the agent is connected",
    "ecs:SubmitTaskStateChange": "ECS learns that a task has ended",
    "ecs:SubmitContainerStateChange": "ECS learns a task's exit code",
}
_ECS_POLICY = "attach AWS's policy AmazonEC2ContainerServiceforEC2Role"


def cluster(scope: Scope) -> Iterator[Finding]:
    """Nothing where no cluster is asked for."""
    if scope.join is None:
        return
    found = [check for role, check in SERVICES.items() if scope.plan and role in scope.plan]
    if found:
        yield from found[0](scope, scope.join or scope.place.clusters.name or "")
    elif scope.plan:
        yield ok("cluster", "the machines of a proof are one of their own")


def _ecs(scope: Scope, name: str) -> Iterator[Finding]:
    if name:
        yield from examined("cluster", functools.partial(_ecs_state, scope, name), decisive=True)
    else:
        yield ok("cluster", "a proof makes an ECS cluster of its own, which costs nothing")
    if not scope.place.instance_profile:
        remedy = f"set instance_profile; {_ECS_POLICY} to its role"
        yield error("cluster", "without an instance profile no agent registers", "a profile", remedy)
        return
    yield from identity.role_allows(scope, ECS_NEEDED, _ECS_POLICY, "what the ECS agent calls")


def _ecs_state(scope: Scope, name: str) -> Iterator[Finding]:
    state = ecs.state(scope.cloud, name)
    if state == ecs.ACTIVE:
        yield ok("cluster", f"ECS cluster {name} is {ecs.ACTIVE}")
    else:
        remedy = "name another one, or none: a proof makes its own then"
        yield error("cluster", f"ECS cluster {name} is {state or 'not there'}", f"an {ecs.ACTIVE} cluster", remedy)


# Role of a node family → what is examined for it: a cluster's name, "" where none was given.
SERVICES: Mapping[str, Callable[[Scope, str], Iterator[Finding]]] = {"node_ecs": _ecs, "node_eks": examine}
