"""NVIDIA's GDRCopy."""

from __future__ import annotations

from gpu_ami.recipes.rules import Component, TemplateVariable, built_from_tag, kernel_module_rule, versioned
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
    size_gib=0.1,
    template=TemplateVariable(r"(nvidia_)?gdrcopy(_driver)?_version"),
)
