"""Rules of a base AMI that has several driver branches and takes one at the first boot (`node_variant`)."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext


def node_has_variant(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """The variant is one of the node family's, and is there for the image's architecture."""
    asked, known = context.node_variant, context.node.get("variants", {})
    if asked is None:
        return
    if asked not in known:
        text = f"node {context.node_name} has no variant {asked}"
        nearest = f"node_variant {' or '.join(known)}" if known else "leave out node_variant, or node eks"
        yield Conflict("node_variant", text, context.node["source"], nearest=nearest)
    elif context.values["architecture"] not in context.variant["architectures"]:
        known_for, architecture = " and ".join(context.variant["architectures"]), context.values["architecture"]
        text = f"the facts know {context.base_ami} for {known_for} alone, the image is {architecture}"
        yield Conflict("node_variant", text, context.variant["source"], nearest="leave out node_variant")


def base_drives_types(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """Every instance type takes a branch of the base AMI."""
    for name, row in context.instance_types.items():
        if context.driver_branches and context.branch_of(name) is None and "refused" not in context.family(name):
            driven = [family for branch in context.variant["driver_branches"].values() for family in branch["families"]]
            text = f"{name}: {context.base_ami} has no driver for {row['family']}"
            nearest = f"types of {', '.join(driven)}; or leave out node_variant"
            yield Conflict("instance_types", text, context.base_ami_source, nearest=nearest)


def builder_takes_no_branch(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """A builder with a GPU would take a branch for all machines: the base AMI takes one, and removes the others."""
    builder = str(context.values["build"]["instance_type"])
    row = context.facts.instance_types["instance_types"].get(builder, {})
    if context.driver_branches and "gpu" in row:
        text = (
            f"{builder} has a GPU: {context.base_ami} takes one of its drivers at the first boot with one and removes "
            f"the others, so every machine of the image would have that of {builder}"
        )
        nearest = "leave out build.instance_type, or a type without a GPU"
        yield Conflict("build.instance_type", text, context.base_ami_source, nearest=nearest)


def base_chooses_the_driver(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """A recipe names no version of the driver: the type of the machine decides it."""
    asked = context.section("nvidia_driver").get("version")
    if context.driver_branches and asked:
        has = "; ".join(map(str, context.driver_branches))
        text = f"driver {asked} on {context.base_ami}, whose base AMI takes one of its own at the first boot: {has}"
        nearest = "leave out nvidia_driver, or node_variant"
        yield Conflict("nvidia_driver.version", text, context.base_ami_source, nearest=nearest)


BRANCH_RULES = (node_has_variant, base_drives_types, builder_takes_no_branch, base_chooses_the_driver)
