"""The cluster that `--join` names: it is there, and a node and the caller may do there what a proof needs."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Mapping

from gpu_ami.cloud import ecs
from gpu_ami.cloud.preflight import access, eks_clusters
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, examined, ok

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
        yield from found[0](scope, scope.join or scope.place.cluster)
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
    yield from access.role_allows(scope, ECS_NEEDED, _ECS_POLICY, "what the ECS agent calls")


def _ecs_state(scope: Scope, name: str) -> Iterator[Finding]:
    state = ecs.state(scope.cloud, name)
    if state == ecs.ACTIVE:
        yield ok("cluster", f"ECS cluster {name} is {ecs.ACTIVE}")
    else:
        remedy = "name another one, or none: a proof makes its own then"
        yield error("cluster", f"ECS cluster {name} is {state or 'not there'}", f"an {ecs.ACTIVE} cluster", remedy)


# Role of a node family → what is examined for it: a cluster's name, "" where none was given.
SERVICES: Mapping[str, Callable[[Scope, str], Iterator[Finding]]] = {"node_ecs": _ecs, "node_eks": eks_clusters.examine}
