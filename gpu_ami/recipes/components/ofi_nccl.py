"""aws-ofi-nccl beside the EFA installer's own."""

from __future__ import annotations

from gpu_ami.recipes.rules import Component, TemplateVariable, built_from_tag, has_packages, versioned
from validator.plan_document import SourceBuild

COMPONENT = Component(
    "ofi_nccl",
    "aws-ofi-nccl",
    layer="libraries",
    after=("efa",),
    is_chosen=True,
    keys=versioned("1.14.0"),
    meanings={"version": "version of aws-ofi-nccl in addition to the EFA installer's; exact, a branch, or `newest`"},
    section=SourceBuild,
    write=built_from_tag("ofi_nccl"),
    rules=((("ofi_nccl",), has_packages("ofi_nccl")),),
    size_gib=0.1,
    template=TemplateVariable(r"(aws_)?ofi_nccl(_version)?"),
)
