"""CUDA: the toolkit, cuda-compat where the driver is older than it, and cuDNN built for it."""

from __future__ import annotations

import re
from typing import NotRequired

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
    plain,
    program,
    runs_natively,
    versioned,
)
from validator.plan_document import Cuda, PackagedComponent, package_system
from validator.schema import Flag


def _cuda_section(context: ResolveContext, versions: Assignment, sources: Sources) -> Cuda:
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
    _note_later_parts(context, version, sources)
    return {
        "version": version,
        "compatibility": mode,
        "packages": packages,
        "repository": nvidia.nvidia_repository(context, sources),
    }


def _note_later_parts(context: ResolveContext, version: str, sources: Sources) -> None:
    """The repository's newest packages fill a toolkit of an earlier update: its meta-package alone is planned."""
    facts = context.facts.cuda
    planned = facts["releases"][version]["package"].partition("-")[0]
    same = [one for one in facts["updates"]["drivers"] if parts(one)[:2] == parts(planned)[:2]]
    newest = max(same, key=parts, default=planned)
    if planned[-1].isdigit() and parts(newest) > parts(planned):
        sources.note(
            f"CUDA {planned}: compiler and libraries may be those of {newest}, as NVIDIA's meta-packages accept later"
            f" versions of what they bring ({facts['meta_packages']['source']})"
        )


def _compatibility(mode: str, driver: str, cuda: str, minimum: str) -> str:
    if mode == "forward":
        return f"CUDA {cuda} on driver {driver} runs by forward compatibility (cuda-compat), on data centre GPUs only"
    return (
        f"CUDA {cuda} on driver {driver} runs by minor-version compatibility (made for ≥ {minimum}): "
        "what needs the newer driver, PTX compiled at run time above all, does not work"
    )


def _cuda_understood(text: str) -> Understood:
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


_CUDA = Component(
    "cuda",
    "CUDA",
    layer="libraries",
    after=("imex",),
    is_chosen=True,
    keys=versioned('"12.4"', forward_compatibility=Flag()),
    meanings={"forward_compatibility": "true: install cuda-compat if the driver is too old for the toolkit"},
    section=Cuda,
    write=_cuda_section,
    observed=Observed(
        (
            package(r"cuda-(toolkit|cudart|nvcc|runtime)-\d+-\d+", r"^(?:\d+:)?(\d+\.\d+)"),
            package(r"nvidia-cuda-toolkit", r"^(?:\d+:)?(\d+\.\d+)"),
            content("/usr/local/cuda/version.json", r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"(\d+\.\d+)', "version.json"),
            file("/usr/local/cuda", r"/cuda-(\d+\.\d+)$", "link"),
            content(
                "/usr/local/cuda-*/version.json", r'"cuda"\s*:\s*\{[^}]*"version"\s*:\s*"(\d+\.\d+)', "toolkit folder"
            ),
            content("/usr/local/cuda-*/version.txt", r"CUDA Version (\d+\.\d+)", "toolkit folder"),  # before 11.1
            *(library(f"libcudart.so.{major}", "cudaRuntimeGetVersion", "cuda") for major in (13, 12, "11.0")),
            program("/usr/local/cuda/bin/nvcc --version", r"release (\d+\.\d+)"),
        ),
        several=True,
    ),
    # About 8 GB of a network installation: https://github.com/chanzuckerberg/shasta/pull/119 (2026-11-22)
    size_gib=8,
    version_tag="cuda_version",
    is_promised=True,
    template=TemplateVariable(r"cuda(_toolkit)?(_(major|major_minor))?_version|cuda|cuda_toolkit", _cuda_understood),
)


class Cudnn(PackagedComponent):
    """cuDNN; `full`: its version with the build number."""

    full: NotRequired[str]


def _cudnn_section(context: ResolveContext, versions: Assignment, sources: Sources) -> Cudnn:
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


def _cudnn_understood(text: str) -> Understood:
    """`libcudnn8`, `libcudnn8=8.6.0.163-1+cuda11.8`, `libcudnn9-cuda-12`, `8.6.0`, `9`."""
    full, package = re.search(r"(\d+\.\d+\.\d+)", text), re.match(r"libcudnn(\d+)", text)
    if full:
        return Understood(full[1])
    if package:
        return Understood(
            package[1], (f"package {text} becomes branch {package[1]}; the lock will pin a release of it",)
        )
    return plain(text)


_CUDNN = Component(
    "cudnn",
    "cuDNN",
    layer="libraries",
    after=("cuda",),
    chosen_after=("nccl",),
    is_chosen=True,
    keys=versioned("9.1.0"),
    section=Cudnn,
    write=_cudnn_section,
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
    template=TemplateVariable(r"(nvidia_)?cudnn(_version)?", _cudnn_understood),
)

COMPONENTS = (_CUDA, _CUDNN)
