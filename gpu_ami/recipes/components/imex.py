"""NVIDIA's IMEX daemon, for instance types whose GPU memory spans machines."""

from __future__ import annotations

from gpu_ami.recipes.components.nvidia_driver import driver_packages
from gpu_ami.recipes.facts import Sources
from gpu_ami.recipes.rules import (
    DRIVER,
    PRESENCE,
    Assignment,
    Component,
    Observed,
    ResolveContext,
    file,
    package,
    program,
)
from validator.plan_document import DriverCompanion
from validator.schema import Keys, Text


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> DriverCompanion | None:
    needed_on = [name for name in context.instance_types if context.family(name).get("imex")]
    return driver_packages.companion(context, versions, sources, component="imex", package="imex", on=needed_on)


COMPONENT = Component(
    "imex",
    "IMEX",
    layer="driver",
    after=("fabric_manager",),
    keys=Keys({"version": Text("550.163.01", r"\d+(\.\d+){1,3}")}),
    meanings={"version": "the driver's version; installed automatically where memory spans machines"},
    section=DriverCompanion,
    write=_section,
    observed=Observed(
        (
            package(r"nvidia-imex(-\d+)?", rf"^(?:\d+:)?{DRIVER}"),
            file("/usr/bin/nvidia-imex", PRESENCE),
            program("nvidia-imex --version", DRIVER),
        )
    ),
    size_gib=0.1,
)
