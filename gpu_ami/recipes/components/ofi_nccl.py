"""aws-ofi-nccl beside the EFA installer's own."""

from __future__ import annotations

from gpu_ami.recipes.rules import (
    COMMIT,
    COMMIT_OF_TAG,
    Component,
    Observed,
    TemplateVariable,
    built_from_tag,
    commit_is_of_tag,
    content,
    has_packages,
    package,
    versioned,
)
from validator.plan_document import SourceBuild

# What the plug-in logs when NCCL loads it; the text is in the library.
_BANNER = r"NET/OFI Initializing aws-ofi-nccl (\d+\.\d+\.\d+)"

COMPONENT = Component(
    "ofi_nccl",
    "aws-ofi-nccl",
    layer="libraries",
    after=("efa",),
    is_chosen=True,
    keys=versioned("1.14.0", commit=COMMIT),
    meanings={
        "version": "version of aws-ofi-nccl in addition to the EFA installer's; exact, a branch, or `newest`",
        "commit": COMMIT_OF_TAG,
    },
    section=SourceBuild,
    write=built_from_tag("ofi_nccl"),
    rules=(commit_is_of_tag("ofi_nccl"), (("ofi_nccl",), has_packages("ofi_nccl"))),
    observed=Observed(
        (
            package(r"libnccl-ofi|aws-ofi-nccl"),
            content("/opt/amazon/ofi-nccl/lib*/libnccl-net*.so", _BANNER, "library file"),
            content("/opt/amazon/ofi-nccl/lib/*/libnccl-net*.so", _BANNER, "library file"),
            content("/usr/local/lib/libnccl-net*.so", _BANNER, "library file"),
        )
    ),
    size_gib=0.1,
    template=TemplateVariable(r"(aws_)?ofi_nccl(_version)?"),
)
