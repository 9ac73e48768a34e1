"""The cluster that `--join` names: it is there, and a node and the caller may do there what a proof needs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

from gpu_ami.cloud import ecs, eks
from gpu_ami.cloud.preflight import access
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, ok, warning
from validator.plan_document import section

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
# What a node of EKS calls with its role (EKS user guide, "Amazon EKS node IAM role"). Calls of the network plug-in are
# not examined: a cluster may give it a role of its own.
EKS_NEEDED = {
    "ec2:DescribeInstances": "nodeadm learns the node's name",
    "ecr:GetAuthorizationToken": "kubelet may pull images of EKS",
    "ecr:BatchGetImage": "kubelet may pull images of EKS",
    "ecr:GetDownloadUrlForLayer": "kubelet may pull images of EKS",
}
_EKS_POLICY = "attach AWS's policies AmazonEKSWorkerNodePolicy and AmazonEC2ContainerRegistryPullOnly"
_NETWORK_PLUGIN = "vpc-cni"


def cluster(scope: Scope) -> Iterator[Finding]:
    """Nothing where no cluster is asked for."""
    if scope.join is None:
        return
    found = [check for role, check in SERVICES.items() if scope.plan and role in scope.plan]
    if found:
        yield from found[0](scope, scope.join or scope.place.cluster)
    elif scope.plan:
        yield ok("cluster", "the machines of a proof are one of their own")


def _ecs(scope: Scope, name: str) -> Iterator[Finding]:
    if name:
        state = ecs.state(scope.cloud, name)
        if state == ecs.ACTIVE:
            yield ok("cluster", f"ECS cluster {name} is {ecs.ACTIVE}")
        else:
            remedy = "name another one, or none: a proof makes its own then"
            yield error("cluster", f"ECS cluster {name} is {state or 'not there'}", f"an {ecs.ACTIVE} cluster", remedy)
    else:
        yield ok("cluster", "a proof makes an ECS cluster of its own, which costs nothing")
    if not scope.place.instance_profile:
        remedy = f"set instance_profile; {_ECS_POLICY} to its role"
        yield error("cluster", "without an instance profile no agent registers", "a profile", remedy)
        return
    yield from _role(scope, ECS_NEEDED, _ECS_POLICY, "what the ECS agent calls")


def _role(scope: Scope, needed: Mapping[str, str], policy: str, what: str) -> Iterator[Finding]:
    """The role of the instance profile allows these actions (action → what it is for)."""
    subject = f"role of {scope.place.instance_profile}"
    missing = access.missing_actions(scope, needed)
    for action in missing:
        yield error(subject, f"{action} is not allowed", "allowed", f"{policy}, so that {needed[action]}")
    if not missing:
        yield ok(subject, f"allows {what}")


def _eks(scope: Scope, name: str) -> Iterator[Finding]:
    version = str(section(scope.plan, "node_eks")["version"]) if scope.plan else ""
    if name:
        yield from _eks_cluster(scope, name, version)
    elif version in scope.place.cluster_versions:
        yield ok("cluster", f"a proof starts an EKS cluster of version {version}")
    else:
        remedy = "--join CLUSTER, or `cluster` in the --where file"
        yield error("cluster", "none, and a proof makes no EKS cluster on AWS", "the name of a cluster", remedy)
    if not scope.place.instance_profile:
        remedy = "set instance_profile to one with the role of the cluster's nodes"
        yield error("cluster", "without an instance profile no node joins", "a profile", remedy)
        return
    yield from _role(scope, EKS_NEEDED, _EKS_POLICY, "what a node of EKS calls")


def _eks_cluster(scope: Scope, name: str, version: str) -> Iterator[Finding]:
    found = eks.describe(scope.cloud, name)
    if found is None or found.status != eks.ACTIVE:
        state = found.status if found else "not there"
        yield error("cluster", f"EKS cluster {name} is {state}", f"an {eks.ACTIVE} cluster", "name another one")
        return
    text = f"EKS cluster {name} is {eks.ACTIVE}, version {found.version}"
    if eks.fits(found.version, version):
        yield ok("cluster", text)
    else:
        yield error("cluster", text, f"one in which a kubelet {version} may run", eks.SKEW)
    for issue in found.issues:
        yield warning("cluster", f"EKS reports of it: {issue}")
    yield from _access_entry(scope, found)
    yield from _network(scope, found)
    if _NETWORK_PLUGIN not in eks.addons(scope.cloud, name):
        remedy = "without a network plug-in no node is Ready; one that was installed in another way is not seen here"
        yield warning("cluster", f"it has no add-on {_NETWORK_PLUGIN}", remedy=remedy)


def _access_entry(scope: Scope, found: eks.Described) -> Iterator[Finding]:
    """The role of a node may join the cluster."""
    role = eks.node_role(scope.cloud)
    if not role:
        return
    if found.mode == eks.CONFIG_MAP:
        text = f"access entries do not count ({found.mode}): whether {role} may join is in its ConfigMap aws-auth"
        yield warning("cluster", text, remedy="not read here; add the role there, or change the authentication mode")
        return
    kind = eks.access_type(scope.cloud, found.name, role)
    if kind == eks.NODES:
        yield ok("cluster", f"has an access entry for {role}")
        return
    text = f"the access entry of {role} has type {kind}" if kind is not None else f"no access entry for {role}"
    yield error("cluster", text, f"one of type {eks.NODES}", eks.how_to_admit(found.name, role))


def _network(scope: Scope, found: eks.Described) -> Iterator[Finding]:
    """A node reaches the API server, and the API server and other nodes reach the node."""
    named = [subnet for subnet in scope.place.subnets if subnet]
    if named and found.vpc:
        for row in scope.ec2.describe_subnets(SubnetIds=named)["Subnets"]:
            if row["VpcId"] != found.vpc:
                text = f"{row['SubnetId']} is in {row['VpcId']}, the cluster in {found.vpc}"
                yield error("subnet_id", text, "a subnet of the cluster's VPC", "correct subnet_id or the cluster")
    if found.security_group and found.security_group not in scope.place.security_group_ids:
        text = f"the cluster's security group {found.security_group} is not among them"
        remedy = "add it, unless rules of the others let nodes and API server reach each other"
        yield warning("security_group_ids", text, remedy=remedy)
    if not found.public:
        text = f"the API of {found.name} can be reached from its VPC alone"
        yield warning(
            "cluster", text, remedy="run gpu-ami where the VPC is reached; nodes and pods are read through it"
        )


# Role of a node family → what is examined for it: a cluster's name, "" where none was given.
SERVICES: Mapping[str, Callable[[Scope, str], Iterator[Finding]]] = {"node_ecs": _ecs, "node_eks": _eks}
