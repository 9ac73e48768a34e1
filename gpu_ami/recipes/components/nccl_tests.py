"""NVIDIA's nccl-tests, built in the image for its GPUs, against its CUDA, NCCL and Open MPI."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from gpu_ami.recipes.components.nccl import COMPONENT as NCCL
from gpu_ami.recipes.components.nvidia_driver import driver_packages as nvidia
from gpu_ami.recipes.facts import Sources, at_least, parts
from gpu_ami.recipes.rules import (
    COMMIT,
    COMMIT_OF_TAG,
    Assignment,
    Component,
    Conflict,
    ResolveContext,
    TemplateVariable,
    built_from_tag,
    commit_is_of_tag,
    versioned,
)
from validator.plan_document import NcclTests, PackagedComponent, SourceBuild

_MAKEFILE = "https://github.com/NVIDIA/nccl-tests (Makefile, src/common.mk)"


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> NcclTests:
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


COMPONENT = Component(
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
    write=_section,
    rules=(
        commit_is_of_tag("nccl_tests"),
        (("nccl_tests",), is_buildable),
        (("nccl_tests", "cuda"), compiles_with_cuda),
    ),
    size_gib=0.6,
    template=TemplateVariable(r"(nvidia_)?nccl_tests?(_version|_branch|_tag)"),
)
