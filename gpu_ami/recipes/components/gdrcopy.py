"""NVIDIA's GDRCopy."""

from __future__ import annotations

from gpu_ami.recipes.rules import (
    COMMIT,
    COMMIT_OF_TAG,
    Component,
    Observed,
    TemplateVariable,
    built_from_tag,
    commit_is_of_tag,
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
    keys=versioned('"2.5"', commit=COMMIT),
    meanings={"commit": COMMIT_OF_TAG},
    section=SourceBuild,
    write=built_from_tag("gdrcopy"),
    rules=(
        commit_is_of_tag("gdrcopy"),
        kernel_module_rule("gdrcopy"),
    ),
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
