"""NVIDIA's fabric manager, for instance types with an NVSwitch, and its subnet manager where that needs one."""

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

# From this generation on, NVSwitch needs NVIDIA's subnet manager beside the fabric manager: amazon-eks-ami 81fec2e8.
_NVLSM_FROM = 4
# The InfiniBand tools that nvlsm needs: amazon-eks-ami 81fec2e8 install-nvidia-driver.sh (2026-07-23).
_INFINIBAND = {"debian": ("infiniband-diags",), "redhat": ("libibumad", "infiniband-diags")}


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> DriverCompanion | None:
    section = driver_packages.companion(
        context, versions, sources, component="fabric_manager", package="package", on=context.nvswitch
    )
    nvlsm = [name for name in context.nvswitch if context.family(name)["nvswitch_generation"] >= _NVLSM_FROM]
    if section and nvlsm and "provided_by" not in section:
        _add_subnet_manager(section, context, nvlsm, sources)
    return section


def _add_subnet_manager(
    section: DriverCompanion, context: ResolveContext, instance_types: list[str], sources: Sources
) -> None:
    """nvlsm in its own version, and the system's packages that it needs ({release}: what `uname -r` prints)."""
    row = driver_packages.last_from(context.facts.driver_packages["nvlsm"], section["version"])
    sources.add("version of nvlsm", row)
    section["nvlsm_instance_types"] = instance_types
    section["packages"] = {"nvlsm": row["version"]}
    section.update(driver_packages.modules_extra(context, *_INFINIBAND[context.os["family"]]))  # type: ignore[typeddict-item]


COMPONENT = Component(
    "fabric_manager",
    "fabric manager",
    layer="driver",
    after=("nvidia_driver",),
    keys=Keys({"version": Text("550.163.01", r"\d+(\.\d+){1,3}")}),
    meanings={
        "version": "the driver's version; installed automatically where an instance type has an NVSwitch",
    },
    section=DriverCompanion,
    write=_section,
    observed=Observed(
        (
            package(r"nvidia-fabric-?manager(-\d+)?|cuda-drivers-fabricmanager(-\d+)?", rf"^(?:\d+:)?{DRIVER}"),
            file("/usr/bin/nv-fabricmanager", PRESENCE),
            program("nv-fabricmanager --version", DRIVER),
        )
    ),
    size_gib=0.1,
)
