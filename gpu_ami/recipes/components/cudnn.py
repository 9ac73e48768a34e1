"""cuDNN, built for the CUDA toolkit of the image."""

from __future__ import annotations

import re
from typing import NotRequired

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
from validator.plan_document import PackagedComponent, package_system


class Cudnn(PackagedComponent):
    """cuDNN; `full`: its version with the build number."""

    full: NotRequired[str]


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> Cudnn:
    row = context.facts.cudnn["releases"][versions["cudnn"]]
    cuda = versions.get("cuda", row["cuda"][-1])
    full = row.get("package", row["full"])
    if branch(versions["cudnn"]) == "8":
        joint = "." if package_system(context.os) == "rpm" else "+"
        packages = {nvidia.library(context, "cudnn8", cuda): f"{full}-1{joint}cuda{nvidia.packaged_cuda(row, cuda)}"}
    else:
        packages = {nvidia.library(context, "cudnn9", cuda): full if full.endswith("*") else f"{full}-1"}
    section: Cudnn = {"version": versions["cudnn"]}  # the other keys follow in order
    if not full.endswith("*"):  # else its build number is not known
        section["full"] = row["full"]
    section["packages"] = packages
    section["repository"] = nvidia.nvidia_repository(context, sources)
    return section


def _understood(text: str) -> Understood:
    """`libcudnn8`, `libcudnn8=8.6.0.163-1+cuda11.8`, `libcudnn9-cuda-12`, `8.6.0`, `9`."""
    full, package = re.search(r"(\d+\.\d+\.\d+)", text), re.match(r"libcudnn(\d+)", text)
    if full:
        return Understood(full[1])
    if package:
        return Understood(
            package[1], (f"package {text} becomes branch {package[1]}; the lock will pin a release of it",)
        )
    return plain(text)


COMPONENT = Component(
    "cudnn",
    "cuDNN",
    layer="libraries",
    after=("cuda",),
    chosen_after=("nccl",),
    is_chosen=True,
    keys=versioned("9.1.0"),
    section=Cudnn,
    write=_section,
    # About 2 GB of storage: https://github.com/karpathy/llm.c/pull/389 (2026-11-22)
    observed=Observed(
        (
            package(r"(lib)?cudnn\d+(-cuda-\d+(-\d+)?)?", r"^(?:\d+:)?(\d+\.\d+\.\d+)"),
            file("libcudnn.so.*", r"libcudnn\.so\.(\d+\.\d+\.\d+)$", "library file"),
            *(library(f"libcudnn.so.{major}", "cudnnGetVersion()", "cudnn") for major in (9, 8)),
        )
    ),
    size_gib=2,
    version_tag="cudnn_version",
    is_promised=True,
    template=TemplateVariable(r"(nvidia_)?cudnn(_version)?", _understood),
)
