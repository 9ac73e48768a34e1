"""The CUDA toolkit, and cuda-compat where the driver is older than it."""

from __future__ import annotations

import re

from gpu_ami.recipes.components.nvidia_driver import driver_packages as nvidia
from gpu_ami.recipes.facts import NEWEST, Sources, at_least, branch, parts
from gpu_ami.recipes.rules import (
    LATEST,
    Assignment,
    Component,
    Observed,
    ResolveContext,
    TemplateVariable,
    Understood,
    content,
    file,
    library,
    package,
    program,
    runs_natively,
    versioned,
)
from validator.plan_document import Cuda
from validator.schema import Flag


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> Cuda:
    version, row = versions["cuda"], context.facts.cuda["releases"][versions["cuda"]]
    packages = {nvidia.library(context, "cuda", version): row["package"]}
    mode = "native"
    driver = versions.get("nvidia_driver")
    if driver and not runs_natively(context, driver, version):
        mode = "minor"
        if not at_least(driver, context.facts.cuda["majors"][branch(version)]["floor"]):
            mode = "forward"
            compat = nvidia.library(context, "cuda_compat", version)
            known = row.get("compat", {}).get(nvidia.package_style(context))
            packages[compat] = nvidia.with_dist(context, known or f"{row['minimum_driver']}-1{{dist}}")
            if not known:
                sources.note(f"not established: that {compat} is packaged as {packages[compat]}")
        if "unknown" in row and mode == "minor":
            sources.note(f"not established: whether driver {driver} was made for CUDA {version}; planned as if not")
        else:
            sources.note(_compatibility(mode, driver, version, row["minimum_driver"]))
    return {
        "version": version,
        "compatibility": mode,
        "packages": packages,
        "repository": nvidia.nvidia_repository(context, sources),
    }


def _compatibility(mode: str, driver: str, cuda: str, minimum: str) -> str:
    if mode == "forward":
        return f"CUDA {cuda} on driver {driver} runs by forward compatibility (cuda-compat), on data centre GPUs only"
    return (
        f"CUDA {cuda} on driver {driver} runs by minor-version compatibility (made for ≥ {minimum}): "
        "what needs the newer driver, PTX compiled at run time above all, does not work"
    )


def _understood(text: str) -> Understood:
    """`cuda-toolkit-11-8 nvidia-gds-11-8`: several packages in one string."""
    versions, others = [], []
    for word in text.split():
        toolkit = re.fullmatch(r"cuda(?:-toolkit)?-(\d+)-(\d+)", word) or re.fullmatch(r"(\d+)\.(\d+)(?:\.\d+)?", word)
        if toolkit:
            versions.append(f"{toolkit[1]}.{toolkit[2]}")
        elif re.fullmatch(r"\d{1,2}", word):
            versions.append(word)
        elif word in (*LATEST, "cuda", "cuda-toolkit"):
            versions.append(NEWEST)
        else:
            others.append(word)
    if not versions:
        return Understood(None, others=tuple(others))
    chosen = max(versions, key=lambda version: (version == NEWEST, parts(version)))
    remarks: tuple[str, ...] = ()
    if len(versions) > 1:
        left = ", ".join(version for version in versions if version != chosen)
        remarks = (f"several toolkits; {chosen} is carried over, {left} is not",)
    return Understood(chosen, remarks, tuple(others))


COMPONENT = Component(
    "cuda",
    "CUDA",
    layer="libraries",
    after=("imex",),
    is_chosen=True,
    keys=versioned('"12.4"', forward_compatibility=Flag()),
    meanings={"forward_compatibility": "true: install cuda-compat if the driver is too old for the toolkit"},
    section=Cuda,
    write=_section,
    observed=Observed(
        (
            package(r"cuda-(toolkit|cudart|nvcc|runtime)-\d+-\d+", r"^(?:\d+:)?(\d+\.\d+)"),
            package(r"nvidia-cuda-toolkit", r"^(?:\d+:)?(\d+\.\d+)"),
            content("/usr/local/cuda/version.json", r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"(\d+\.\d+)', "version.json"),
            file("/usr/local/cuda", r"/cuda-(\d+\.\d+)$", "link"),
            *(library(f"libcudart.so.{major}", "cudaRuntimeGetVersion", "cuda") for major in (13, 12, "11.0")),
            program("/usr/local/cuda/bin/nvcc --version", r"release (\d+\.\d+)"),
        ),
        several=True,
    ),
    # About 8 GB of a network installation: https://github.com/chanzuckerberg/shasta/pull/119 (2026-11-22)
    size_gib=8,
    version_tag="cuda_version",
    is_promised=True,
    template=TemplateVariable(r"cuda(_toolkit)?(_(major|major_minor))?_version|cuda|cuda_toolkit", _understood),
)
