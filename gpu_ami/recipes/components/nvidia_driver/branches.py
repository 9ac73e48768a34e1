"""The plan's section of a base AMI that has several driver branches and takes one at the first boot."""

from __future__ import annotations

from gpu_ami.recipes.facts import Sources, branch
from gpu_ami.recipes.rules import ResolveContext
from validator.plan_document import DriverBranch, DriverOfBase


def of_base(context: ResolveContext, sources: Sources) -> DriverOfBase:
    """What the plan says of the base AMI's driver beside its version: nothing where there is one branch."""
    if not context.driver_branches:
        return {}
    row = context.variant
    section: DriverOfBase = {
        "flavour": "boot",
        "flavour_by_instance_type": {
            name: one.flavours[name]
            for name in context.instance_types
            for one in context.driver_branches
            if name in one.flavours
        },
        "branches": {
            one.name: DriverBranch(
                version=one.version,
                tree=f"{row['trees']}/{one.name}",
                open_list=row["open_list"].format(branch=branch(one.version)),
                instance_types=list(one.flavours),
            )
            for one in context.driver_branches
        },
        "selects_at_boot": list(row["selects_at_boot"]),
    }
    without_gsp = [name for name, facts in context.instance_types.items() if facts["family"] in row["without_gsp"]]
    if without_gsp:
        section["without_gsp"] = without_gsp
    branches = "; ".join(map(str, context.driver_branches))
    sources.note(f"{context.base_ami} takes one of its drivers at the first boot, by the instance type: {branches}")
    return section
