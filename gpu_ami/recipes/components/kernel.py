"""The kernel series of the image; its key in the recipe is one of the system's (gpu_ami/recipes/layers.py)."""

from __future__ import annotations

from gpu_ami.recipes.facts import ARCHITECTURES, Row, Sources
from gpu_ami.recipes.rules import NO_KEYS, Assignment, Component, ResolveContext
from validator.plan_document import Kernel


def kernel_section(system: Row, series: str, architecture: str) -> Kernel:
    """Packages of a kernel series on an operating system. `headers` may contain {release}: the output of `uname -r`."""
    rows = system["kernel_packages"]
    row, deb = rows.get(series) or rows["default"], ARCHITECTURES[architecture].deb
    return {
        "version": series,
        "package": row["package"].replace("{deb}", deb),
        "headers": row["headers"],
        "hold": [name.replace("{deb}", deb) for name in row["hold"]],
    }


def _section(context: ResolveContext, _versions: Assignment, _sources: Sources) -> Kernel:
    return kernel_section(context.os, context.kernel, context.values["architecture"])


COMPONENT = Component("kernel", layer="kernel", is_in_every_plan=True, keys=NO_KEYS, section=Kernel, write=_section)
