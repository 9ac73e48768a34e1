"""The rule of the root volume: it holds what the plan installs (variables/facts/installed_sizes.yml)."""

from __future__ import annotations

import math
from collections.abc import Iterator

from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext


def installed_gib(context: ResolveContext) -> dict[str, float]:
    """GiB by what takes them: the base AMI, each component that the plan installs, and a reserve."""
    sizes = context.facts.installed_sizes
    taken = {f"base AMI ({context.node_name})": float(sizes["base_ami"][context.node_name]["gib"])}
    for name, component in context.components.items():
        # Layers below the recipe set keys of components that it does not have.
        is_asked = context.section(name).get("version") if component.is_chosen else name in context.values
        if component.size_gib and is_asked:
            of_site = sizes.get("components", {}).get(name)
            taken[context.label(name)] = float(of_site["gib"]) if of_site else component.size_gib
    taken["reserve"] = float(sizes["reserve"]["gib"])
    return taken


def least_gib(context: ResolveContext) -> int:
    """The smallest root volume for the plan, in whole GiB."""
    needed = math.ceil(sum(installed_gib(context).values()))
    with_cuda = int(context.facts.installed_sizes["minimum_with_cuda"]["gib"])
    return max(needed, with_cuda) if context.section("cuda").get("version") else needed


def volume_has_room(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    size, least = int(context.values["build"]["root_volume_gib"]), least_gib(context)
    if size < least:
        taken = ", ".join(f"{name} {gib:g}" for name, gib in installed_gib(context).items())
        text = f"a root volume of {size} GiB is too small: expected at least {least} ({taken} GiB)"
        source = "variables/facts/installed_sizes.yml"
        yield Conflict("build.root_volume_gib", text, source, nearest=f"build.root_volume_gib {least}")
