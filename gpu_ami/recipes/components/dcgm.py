"""NVIDIA's Data Center GPU Manager."""

from __future__ import annotations

from gpu_ami.recipes.components.nvidia_driver import driver_packages as nvidia
from gpu_ami.recipes.facts import Sources, branch
from gpu_ami.recipes.rules import (
    Assignment,
    Component,
    Observed,
    ResolveContext,
    TemplateVariable,
    file,
    package,
    program,
    versioned,
)
from validator.plan_document import PackagedComponent


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> PackagedComponent:
    row = context.facts.dcgm["releases"][versions["dcgm"]]
    cuda = branch(versions.get("cuda", row["cuda"][-1]))
    package_version = f"{row['epoch']}{versions['dcgm']}{row.get('revision', '')}"
    if "reported" in row:
        sources.note(row["reported"])
    return {
        "version": versions["dcgm"],
        "packages": {name.format(cuda=cuda): package_version for name in row["packages"]},
        "repository": nvidia.nvidia_repository(context, sources),
    }


COMPONENT = Component(
    "dcgm",
    "DCGM",
    layer="node",
    after=("gdrcopy",),
    is_chosen=True,
    keys=versioned("4.4.2"),
    section=PackagedComponent,
    write=_section,
    observed=Observed(
        (
            package(r"datacenter-gpu-manager(-\d+-(core|cuda\d+|cuda-all|proprietary))?", r"^(?:\d+:)?(\d+\.\d+\.\d+)"),
            file("libdcgm.so.*", r"libdcgm\.so\.(\d+\.\d+\.\d+)$", "library file"),
            program("dcgmi --version", r"version: *(\d+\.\d+\.\d+)"),
        )
    ),
    size_gib=1.5,
    template=TemplateVariable(r"(nvidia_)?dcgm(_version)?|datacenter_gpu_manager_version"),
)
