"""NCCL, built for the CUDA toolkit of the image."""

from __future__ import annotations

import re

from gpu_ami.recipes.components.nvidia_driver import driver_packages as nvidia
from gpu_ami.recipes.facts import Sources, branch
from gpu_ami.recipes.rules import (
    Assignment,
    Component,
    Observed,
    ResolveContext,
    TemplateVariable,
    Understood,
    file,
    library,
    package,
    plain,
    versioned,
)
from validator.plan_document import PackagedComponent


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> PackagedComponent:
    row = context.facts.nccl["releases"][versions["nccl"]]
    cuda = versions.get("cuda", row["cuda"][-1])
    suffix = nvidia.packaged_cuda(row, cuda)
    package_version = f"{versions['nccl']}-1+cuda{suffix}"
    if "unknown" in row:
        package_version = f"{versions['nccl']}-1+cuda{branch(cuda)}*"
    elif suffix not in row.get("packaged", []):
        sources.note(f"not established: that NCCL {versions['nccl']} is packaged as {package_version}")
    return {
        "version": versions["nccl"],
        "packages": {nvidia.library(context, "nccl", cuda): package_version},
        "repository": nvidia.nvidia_repository(context, sources),
    }


def _understood(text: str) -> Understood:
    """A git tag (`v2.12.7-1`) or a package (`libnccl2=2.18.5-1+cuda12.2`)."""
    tag = re.search(r"(?<![\d.])v?(\d+\.\d+\.\d+)", text)
    return Understood(tag[1]) if tag else plain(text)


COMPONENT = Component(
    "nccl",
    "NCCL",
    layer="libraries",
    after=("cudnn",),
    chosen_after=("ofi_nccl",),
    is_chosen=True,
    keys=versioned("2.21.5"),
    section=PackagedComponent,
    write=_section,
    observed=Observed(
        (
            package(r"libnccl2?", r"^(?:\d+:)?(\d+\.\d+\.\d+)"),
            file("libnccl.so.2", r"libnccl\.so\.(\d+\.\d+\.\d+)$", "library file"),
            library("libnccl.so.2", "ncclGetVersion", "nccl"),
        )
    ),
    size_gib=0.7,
    version_tag="nccl_version",
    is_promised=True,
    template=TemplateVariable(r"(nvidia_)?nccl(_version)?", _understood),
)
