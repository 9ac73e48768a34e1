"""NVIDIA's GDRCopy."""

from __future__ import annotations

from gpu_ami.recipes.rules import (
    Component,
    Observed,
    TemplateVariable,
    built_from_tag,
    file,
    kernel_module_rule,
    module,
    package,
    versioned,
)
from validator.plan_document import SourceBuild

COMPONENT = Component(
    "gdrcopy",
    "GDRCopy",
    layer="libraries",
    after=("ofi_nccl",),
    is_chosen=True,
    keys=versioned('"2.5"'),
    section=SourceBuild,
    write=built_from_tag("gdrcopy"),
    rules=(kernel_module_rule("gdrcopy"),),
    observed=Observed(
        (
            package(r"gdrdrv-dkms|libgdrapi|gdrcopy(-kmod)?", r"^(\d+\.\d+)"),
            *module("gdrdrv", r"^(\d+\.\d+)"),
            file("libgdrapi.so.2", r"libgdrapi\.so\.(\d+\.\d+)", "library file"),
            file("/var/lib/dkms/gdrdrv/*/source", r"gdrdrv-(\d+\.\d+)", "DKMS"),
        )
    ),
    size_gib=0.1,
    template=TemplateVariable(r"(nvidia_)?gdrcopy(_driver)?_version"),
)
