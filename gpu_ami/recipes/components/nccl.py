"""NCCL, its tests, and aws-ofi-nccl beside the EFA installer's own."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import cast

from gpu_ami.recipes.components.nvidia_driver import driver_packages as nvidia
from gpu_ami.recipes.facts import Sources, at_least, branch, parts
from gpu_ami.recipes.rules import (
    COMMIT,
    COMMIT_OF_TAG,
    Assignment,
    Component,
    Conflict,
    Observed,
    ResolveContext,
    TemplateVariable,
    Understood,
    built_from_tag,
    commit_is_of_tag,
    content,
    file,
    has_packages,
    library,
    package,
    plain,
    versioned,
)
from validator.plan_document import NcclTests, PackagedComponent, SourceBuild


def _nccl_section(context: ResolveContext, versions: Assignment, sources: Sources) -> PackagedComponent:
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


def _nccl_understood(text: str) -> Understood:
    """A git tag (`v2.12.7-1`) or a package (`libnccl2=2.18.5-1+cuda12.2`)."""
    tag = re.search(r"(?<![\d.])v?(\d+\.\d+\.\d+)", text)
    return Understood(tag[1]) if tag else plain(text)


NCCL = Component(
    "nccl",
    "NCCL",
    layer="libraries",
    after=("cudnn",),
    chosen_after=("ofi_nccl",),
    is_chosen=True,
    keys=versioned("2.21.5"),
    section=PackagedComponent,
    write=_nccl_section,
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
    template=TemplateVariable(r"(nvidia_)?nccl(_version)?", _nccl_understood),
)


_MAKEFILE = "https://github.com/NVIDIA/nccl-tests (Makefile, src/common.mk)"


def _nccl_tests_section(context: ResolveContext, versions: Assignment, sources: Sources) -> NcclTests:
    built = cast(SourceBuild, built_from_tag("nccl_tests")(context, versions, sources))
    nccl = cast(PackagedComponent, NCCL.written(context, versions, sources))
    (version,) = nccl["packages"].values()
    return {
        **built,
        "packages": {nvidia.library(context, "nccl_dev", versions.get("cuda", "")): version},
        "repository": nvidia.nvidia_repository(context, sources),
        "capabilities": sorted({gpu.row["compute_capability"] for gpu in context.gpus}, key=parts),
    }


def is_buildable(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """It is compiled with nvcc, and linked to the planned NCCL and to the Open MPI of the EFA installer."""
    if not context.gpus:
        text = "nccl-tests needs NVIDIA GPUs: no instance type has one"
        yield Conflict("nccl_tests", text, _MAKEFILE, nearest="leave out nccl_tests")
        return
    for name, what in (("cuda", "nvcc"), ("nccl", "the headers of the planned NCCL")):
        if name not in context.values:
            text = f"nccl-tests needs {what}: the recipe has no {name}"
            yield Conflict("nccl_tests", text, _MAKEFILE, nearest=f"add {name}.version, or leave out nccl_tests")
    if "efa" not in context.values and "efa" not in context.provided:
        text = "nccl-tests needs Open MPI, which the EFA installer brings: the recipe has no efa"
        yield Conflict("nccl_tests", text, _MAKEFILE, nearest="add efa.version, or leave out nccl_tests")
    elif context.section("efa").get("mode", "full") == "minimal":
        text = "nccl-tests needs Open MPI, which efa.mode minimal leaves out"
        yield Conflict("efa.mode", text, _MAKEFILE, nearest="efa.mode full, or leave out nccl_tests")


def compiles_with_cuda(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    first = str(context.facts.table("nccl_tests")["cuda13_from"])
    if at_least(chosen["cuda"], "13") and not at_least(chosen["nccl_tests"], first):
        text = f"nccl-tests {chosen['nccl_tests']} does not compile with CUDA {chosen['cuda']}: only from {first} on"
        yield Conflict("nccl_tests.version", text, f"{_MAKEFILE} of v{first}", ("nccl_tests", "cuda"))


_NCCL_TESTS = Component(
    "nccl_tests",
    "nccl-tests",
    layer="libraries",
    after=("gdrcopy",),
    chosen_after=("nccl",),
    is_chosen=True,
    keys=versioned("2.18.5", commit=COMMIT),
    meanings={
        "version": "version of nccl-tests, which tier T4 runs; exact, a branch, or `newest`. Needs cuda, nccl and efa",
        "commit": COMMIT_OF_TAG,
    },
    section=NcclTests,
    write=_nccl_tests_section,
    rules=(
        commit_is_of_tag("nccl_tests"),
        (("nccl_tests",), is_buildable),
        (("nccl_tests", "cuda"), compiles_with_cuda),
    ),
    size_gib=0.6,
    template=TemplateVariable(r"(nvidia_)?nccl_tests?(_version|_branch|_tag)"),
)


# What the plug-in logs when NCCL loads it; the text is in the library.
_BANNER = r"NET/OFI Initializing aws-ofi-nccl (\d+\.\d+\.\d+)"

_OFI_NCCL = Component(
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

COMPONENTS = (NCCL, _NCCL_TESTS, _OFI_NCCL)
