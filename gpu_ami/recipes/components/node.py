"""The roles of the node families: what an image has as a node of EKS, ECS or ParallelCluster. A plain one has none.

A family has one role for each publisher of its base AMI: EKS's with Ubuntu are Canonical's.
"""

from __future__ import annotations

from gpu_ami.recipes.facts import Sources
from gpu_ami.recipes.rules import (
    NO_KEYS,
    PRESENCE,
    Assignment,
    Component,
    Observed,
    ResolveContext,
    content,
    file,
    package,
    program,
    record,
)
from validator.plan_document import NodeRole

_OBSERVED = {
    "dlami": (
        content("/etc/motd", r"Deep Learning.*?(20\d{6})", "message of the day"),
        file("/opt/dlami", PRESENCE, "folder of the DLAMI"),
    ),
    # amazon-eks-ami: nodeadm in its AL2023 AMIs, bootstrap.sh in those of AL2; Canonical's have bootstrap.sh, too.
    "eks": (
        file("/usr/bin/nodeadm", PRESENCE),
        file("/etc/eks/bootstrap.sh", PRESENCE),
        package(r"kubelet", r"^(\d+\.\d+)"),
        content("/etc/eks/kubelet-version.txt", r"v(\d+\.\d+)"),  # install-worker.sh of amazon-eks-ami
        content("/etc/eks/release", r'KUBERNETES_VERSION="?v?(\d+\.\d+)'),
        program("kubelet --version", r"v(\d+\.\d+)"),
    ),
    "ecs": (package(r"ecs-init", PRESENCE), file("/usr/libexec/amazon-ecs-init", PRESENCE)),
    "parallelcluster": (record("/opt/parallelcluster/.bootstrapped", r"aws-parallelcluster-cookbook-(\d+\.\d+\.\d+)"),),
}


def _component(role: str, after: str, layer: str = "kernel") -> Component:
    def write(context: ResolveContext, _versions: Assignment, _sources: Sources) -> NodeRole | None:
        if context.node_role != f"node_{role}":
            return None
        section: NodeRole = {"version": context.node_version or ""}
        if role == "ecs":  # for the agent, which schedules tasks on it
            section["accelerator"] = next(iter(sorted(context.accelerators)), "none")
        if context.driver_branches:
            section["has_driver"] = True
        return section

    return Component(
        f"node_{role}",
        layer=layer,
        after=(after,),
        keys=NO_KEYS,
        section=NodeRole,
        write=write,
        observed=Observed(_OBSERVED[role]) if role in _OBSERVED else None,
    )


COMPONENTS = (
    _component("dlami", "kernel", layer=""),  # a DLAMI has all that it needs
    _component("eks", "node_dlami"),
    _component("eks_ubuntu", "node_eks"),  # found as node_eks in a system that others built
    _component("ecs", "node_eks_ubuntu"),
    _component("parallelcluster", "node_ecs"),
)
