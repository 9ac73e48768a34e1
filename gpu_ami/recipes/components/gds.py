"""NVIDIA's GPUDirect Storage: the kernel module nvidia-fs, cuFile and its tools."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.components.nvidia_driver import driver_packages as nvidia
from gpu_ami.recipes.facts import Sources
from gpu_ami.recipes.rules import (
    Assignment,
    Component,
    Conflict,
    Observed,
    ResolveContext,
    TemplateVariable,
    file,
    kernel_module_rule,
    module,
    package,
    versioned,
)
from validator.plan_document import Gds

_MODULE = "nvidia-fs-dkms"
_LEAVE_OUT = "leave out gds"


def _section(context: ResolveContext, versions: Assignment, sources: Sources) -> Gds:
    facts, cuda = context.facts.gds, versions["cuda"]
    update = context.facts.cuda["releases"][cuda]["package"].partition("-")[0]
    tools = facts["tools"]["versions"].get(update)
    sources.add("sizes of nvidia-fs's tables", facts["build"])
    section: Gds = {"version": versions["gds"], "build": dict(facts["build"]["variables"])}
    if tools:
        section["tools"] = tools
        sources.add(f"gds-tools of CUDA {update}", facts["tools"])
    else:
        sources.note(f"not established: the version of gds-tools and libcufile of CUDA {update}; the newest is planned")
    of_cuda = f"{tools}-1" if tools else "*"
    names = [nvidia.library(context, name, cuda) for name in ("gds_tools", "cufile")]
    section["packages"] = {_MODULE: f"{versions['gds']}-1", **dict.fromkeys(names, of_cuda)}
    section["repository"] = nvidia.nvidia_repository(context, sources)
    _remarks(context, sources)
    return section


def _remarks(context: ResolveContext, sources: Sources) -> None:
    facts = context.facts.gds
    if context.values["architecture"] not in facts["architectures"]["names"]:
        where = f"{context.values['architecture']} ({facts['architectures']['source']})"
        sources.note(f"not established: that {_MODULE} is packaged for {where}")
    sources.note(
        "GPUDirect Storage: nvidia-fs serves FSx for Lustre over EFA. The NVMe drives of an instance need a driver "
        "with NVIDIA's changes (DOCA), which no role installs, or the kernel's P2PDMA; without, cuFile copies through "
        f"the CPU ({facts['nvme']['source']})"
    )
    if "efa" in context.values:
        sources.note(
            "efa_nv_peermem with nvidia-fs: for a kernel that is installed later, DKMS builds efa_nv_peermem with the "
            "last source of /usr/src/nvidia-*, which is nvidia-fs: check its symbols then "
            f"({facts['peer_memory']['source']})"
        )


def has_what_it_needs(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """The module is built with the source of NVIDIA's driver packages; the tools are of the planned CUDA."""
    source = context.facts.gds["flavour"]["source"]
    if not context.gpus:
        text = "GPUDirect Storage needs NVIDIA GPUs: no instance type has one"
        yield Conflict("gds", text, source, nearest=_LEAVE_OUT)
        return
    if "cuda" not in context.values:
        text = "GPUDirect Storage needs a CUDA toolkit, to which cuFile and gds-tools belong: the recipe has no cuda"
        yield Conflict("gds", text, source, nearest=f"add cuda.version, or {_LEAVE_OUT}")
    if context.driver_source == "base":
        text = f"nvidia-fs is built with the driver's source, and the driver is {context.base_ami}'s own"
        yield Conflict("gds", text, source, nearest=_LEAVE_OUT)
    elif context.driver_source != "vendor":
        others = f"the driver is of source {context.driver_source}"
        text = f"{_MODULE} depends on the driver's packages of NVIDIA's repository, and {others}"
        yield Conflict("nvidia_driver.source", text, source, nearest=f"leave out nvidia_driver.source, or {_LEAVE_OUT}")
    elif context.flavour != "open":
        text = f"nvidia-fs loads beside the open kernel module alone, and the image has {context.flavour}"
        yield Conflict("nvidia_driver.flavour", text, source, nearest=f"flavour open, or {_LEAVE_OUT}")


COMPONENT = Component(
    "gds",
    "GPUDirect Storage",
    layer="libraries",
    after=("gdrcopy",),  # and EFA: efa_nv_peermem is built with the last source of /usr/src/nvidia-*
    before=("dcgm",),
    is_chosen=True,
    keys=versioned('"2.29"'),
    meanings={"version": "version of nvidia-fs; exact, a branch, or `newest`. Needs cuda and the open kernel module"},
    section=Gds,
    write=_section,
    rules=((("gds",), has_what_it_needs), kernel_module_rule("gds")),
    observed=Observed(
        (
            package(r"nvidia-fs(-dkms)?", r"^(\d+\.\d+\.\d+)"),
            *module("nvidia_fs", r"^(\d+\.\d+\.\d+)"),
            file("/var/lib/dkms/nvidia-fs/*/source", r"nvidia-fs-(\d+\.\d+\.\d+)", "DKMS"),
        )
    ),
    size_gib=0.2,
    template=TemplateVariable(r"(nvidia_)?gds(_driver)?_version|nvidia_fs(_dkms)?_version"),
)
