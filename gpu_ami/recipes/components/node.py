"""The roles of the node families: what an image has as a node of EKS, ECS or ParallelCluster. A plain one has none."""

from __future__ import annotations

from gpu_ami.recipes.facts import Sources
from gpu_ami.recipes.rules import NO_KEYS, Assignment, Component, ResolveContext
from validator.plan_document import NodeRole


def _component(family: str, after: str, layer: str = "kernel") -> Component:
    def write(context: ResolveContext, _versions: Assignment, _sources: Sources) -> NodeRole | None:
        if context.node_name != family:
            return None
        section: NodeRole = {"version": context.node_version or ""}
        if family == "ecs":  # for the agent, which schedules tasks on it
            section["accelerator"] = next(iter(sorted(context.accelerators)), "none")
        if context.driver_branches:
            section["has_driver"] = True
        return section

    return Component(f"node_{family}", layer=layer, after=(after,), keys=NO_KEYS, section=NodeRole, write=write)


COMPONENTS = (
    _component("dlami", "kernel", layer=""),  # a DLAMI has all that it needs
    _component("eks", "node_dlami"),
    _component("ecs", "node_eks"),
    _component("parallelcluster", "node_ecs"),
)
