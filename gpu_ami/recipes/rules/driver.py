"""Rules of the driver: CUDA, GPU architectures, kernel modules, package repositories, and libraries built for CUDA.

With those of a driver from the operating system's own archive (`nvidia_driver.source: distribution`).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.facts import at_least, at_most, branch, parts
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, Gpu, ResolveContext


def runs_natively(context: ResolveContext, driver: str, cuda: str) -> bool:
    """Whether the driver was released for this CUDA or a newer one."""
    return at_least(driver, context.facts.cuda["releases"][cuda]["minimum_driver"])


def driver_runs_cuda(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    driver, cuda = chosen["nvidia_driver"], chosen["cuda"]
    major = context.facts.cuda["majors"][branch(cuda)]
    if runs_natively(context, driver, cuda) or at_least(driver, major["floor"]):
        return
    row = context.facts.cuda["releases"][cuda]
    text = f"driver {driver} cannot run CUDA {cuda}: needs ≥ {oldest_driver(row['minimum_driver'], major['floor'])}"
    if context.section("cuda").get("forward_compatibility"):
        if branch(driver) in major["forward_from"]:
            return
        able = ", ".join(f"R{name}" for name in major["forward_from"]) or "no branch"
        text = f"{text}, and cuda-compat of CUDA {branch(cuda)} runs on {able}"
    yield Conflict("cuda.version", text, row["source"], ("nvidia_driver", "cuda"))


def oldest_driver(minimum: str, floor: str) -> str:
    """The oldest driver that runs a toolkit: its own minimum, or the floor of its major version if that is older."""
    return minimum if at_least(floor, minimum) else floor


def gpu_runs_driver(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    for gpu in context.gpus:
        own = context.branch_of(gpu.instance_types[0])
        driver = own.version if own else chosen["nvidia_driver"]
        for limits in (gpu.architecture, gpu.model):
            first, last = limits.get("driver", {}).get("first"), limits.get("driver", {}).get("last")
            if first and not at_least(driver, first):
                text = f"driver {driver} does not support {gpu.named}: needs ≥ {first}"
            elif last and not at_most(driver, last):
                text = f"driver {driver} no longer supports {gpu.named}: R{last} is the last that does"
            else:
                continue
            apart = _apart(context)
            yield Conflict("nvidia_driver.version", text, limits["source"], () if apart else ("nvidia_driver",), apart)


def _apart(context: ResolveContext) -> str:
    """What to do if no driver supports all GPUs of the recipe; empty if one does."""
    releases = context.facts.driver_releases
    if any(all(drives(gpu, release) for gpu in context.gpus) for release in releases):
        return ""
    return "build an image for each, as no driver supports all: " + ", ".join(
        f"{', '.join(gpu.instance_types)} with {[release for release in releases if drives(gpu, release)][-1]}"
        for gpu in context.gpus
    )


def drives(gpu: Gpu, driver: str) -> bool:
    """Whether the driver supports the GPU."""
    limits = [row.get("driver", {}) for row in (gpu.architecture, gpu.model)]
    return all(
        at_least(driver, limit.get("first", "0")) and at_most(driver, limit.get("last", "9999")) for limit in limits
    )


def gpu_runs_cuda(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    cuda = chosen["cuda"]
    for gpu in context.gpus:
        limits, architecture = gpu.architecture["cuda"], gpu.row["architecture"]
        if "first" in limits and not at_least(cuda, limits["first"]):
            text = f"CUDA {cuda} does not support {gpu.named}: {architecture} starts with CUDA {limits['first']}"
        elif "last" in limits and not at_most(cuda, limits["last"]):
            text = f"CUDA {cuda} no longer supports {gpu.named}: CUDA {limits['last']} is the last for {architecture}"
        else:
            continue
        yield Conflict("cuda.version", text, gpu.architecture["source"], ("cuda",))


def gpu_runs_cudnn(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    cudnn, last = chosen["cudnn"], context.facts.cudnn["last_by_architecture"]
    for gpu in context.gpus:
        row = last.get(gpu.architecture["name"])
        if row and not at_most(cudnn, row["last"]):
            text = (
                f"cuDNN {cudnn} does not support {gpu.named}: {row['last']} is the last for {gpu.architecture['name']}"
            )
            yield Conflict("cudnn.version", text, row["source"], ("cudnn",))


def flavour_fits(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """One kernel module must support all GPUs; `boot` installs several and loads the right one at boot."""
    flavour = context.flavour
    if context.provided.get("nvidia_driver") or not context.gpus:
        return
    fitting = frozenset.intersection(*(frozenset(gpu.architecture["flavours"]) for gpu in context.gpus))
    for gpu in context.gpus:
        allowed = gpu.architecture["flavours"]
        if flavour != "boot" and flavour not in allowed:
            only = f"{gpu.row['architecture']} is {allowed[0]} only"
            text = f"the {flavour} kernel module does not support {gpu.named}: {only}"
            nearest = f"flavour {sorted(fitting)[0]}" if fitting else "flavour boot (both modules, chosen by PCI id)"
            yield Conflict("nvidia_driver.flavour", text, gpu.architecture["source"], nearest=nearest)
    shipped = context.facts.driver_releases[chosen["nvidia_driver"]]
    needed = {flavour} if flavour != "boot" else {"open", "proprietary"}
    for missing in sorted(needed - set(shipped["flavours"])):
        text = f"driver {chosen['nvidia_driver']} has no {missing} kernel module"
        yield Conflict("nvidia_driver.flavour", text, shipped["source"], ("nvidia_driver",))


def gsp_can_be_off(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    if context.section("nvidia_driver").get("gsp") is False and context.flavour == "open":
        text = "GSP firmware cannot be switched off with the open kernel module"
        nearest = "flavour proprietary, or leave out nvidia_driver.gsp"
        yield Conflict("nvidia_driver.gsp", text, context.facts.gpudirect["gsp"]["source"], nearest=nearest)


def repository_has_driver(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    if context.driver_source == "vendor":
        yield from _repository_has(context, "nvidia_driver", "driver", chosen["nvidia_driver"])


def repository_has_cuda(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    if "cuda" not in context.provided:
        yield from _repository_has(context, "cuda", "cuda", chosen["cuda"])


def _repository_has(context: ResolveContext, component: str, kind: str, version: str) -> Iterator[Conflict]:
    repository, label = context.os["nvidia_repository"], "driver" if kind == "driver" else "CUDA"
    first, last = repository[kind].get("first", "0"), repository[kind].get("last", "9999")
    if not (at_least(version, first) and at_most(version, last)):
        held = f"from {first} to {last}" if "last" in repository[kind] else f"from {first} on"
        text = f"NVIDIA's repository for {context.os_name} has no {label} {version}: it holds {held}"
        yield Conflict(f"{component}.version", text, context.os["source"], (component,))


def repository_has_architecture(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    repository, architecture = context.os["nvidia_repository"], context.values["architecture"]
    if context.driver_source != "vendor" or architecture in repository["architectures"]:
        return
    others = [
        name
        for name, row in context.facts.operating_systems.items()
        if architecture in row["nvidia_repository"]["architectures"] and name in context.node["operating_systems"]
    ]
    text = f"NVIDIA's repository for {context.os_name} has no {architecture} packages"
    yield Conflict("architecture", text, context.os["source"], nearest=f"os {' or '.join(others)}" if others else "")


def cudnn_fits_cuda(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    yield from _built_for(context, chosen, "cudnn", "cuDNN")


def nccl_fits_cuda(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    yield from _built_for(context, chosen, "nccl", "NCCL")


def dcgm_fits_cuda(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    yield from _built_for(context, chosen, "dcgm", "DCGM")


def _built_for(context: ResolveContext, chosen: Assignment, component: str, label: str) -> Iterator[Conflict]:
    row = context.facts.releases(component)[chosen[component]]
    if branch(chosen["cuda"]) not in row["cuda"]:
        built = " and ".join(row["cuda"])
        text = f"{label} {chosen[component]} is not built for CUDA {chosen['cuda']}: it is for CUDA {built}"
        yield Conflict(f"{component}.version", text, row["source"], (component, "cuda"))


def fabric_manager_matches(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """Fabric manager and IMEX need a kernel module of exactly their own version."""
    for component, label in (("fabric_manager", "fabric manager"), ("imex", "IMEX")):
        asked = context.section(component).get("version")
        if asked and asked != chosen["nvidia_driver"]:
            text = f"{label} {asked} does not start with driver {chosen['nvidia_driver']}: they must be equal"
            source = "ParallelCluster issue 3034; amazon-eks-ami 81fec2e8 validate.sh"
            nearest = f"leave out {component}.version (it follows the driver), or {label} {chosen['nvidia_driver']}"
            yield Conflict(f"{component}.version", text, source, nearest=nearest)


DRIVER_RULES = (
    (("nvidia_driver", "cuda"), driver_runs_cuda),
    (("nvidia_driver",), gpu_runs_driver),
    (("cuda",), gpu_runs_cuda),
    (("cudnn",), gpu_runs_cudnn),
    (("nvidia_driver",), flavour_fits),
    (("nvidia_driver",), gsp_can_be_off),
    (("nvidia_driver",), repository_has_driver),
    (("cuda",), repository_has_cuda),
    (("nvidia_driver",), repository_has_architecture),
    (("cudnn", "cuda"), cudnn_fits_cuda),
    (("nccl", "cuda"), nccl_fits_cuda),
    (("dcgm", "cuda"), dcgm_fits_cuda),
    (("nvidia_driver",), fabric_manager_matches),
)


def distribution_has_driver(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """The facts know drivers in the archive of the image's system and for its architecture."""
    if not context.is_distribution_driver:
        return
    path, systems = "nvidia_driver.source", context.facts.distribution_drivers["systems"]
    row, architecture = systems.get(context.os_name), context.values["architecture"]
    if row is None:
        text = f"the facts have no NVIDIA driver in the archive of {context.os_name}"
        nearest = f"leave out nvidia_driver.source (NVIDIA's repository), or os {' or '.join(systems)}"
        yield Conflict(path, text, "variables/facts/distribution_drivers.yml", nearest=nearest)
    elif architecture not in row["architectures"]:
        text = f"the facts have no NVIDIA driver in the archive of {context.os_name} for {architecture}"
        yield Conflict(path, text, row["source"], nearest="leave out nvidia_driver.source (NVIDIA's repository)")


def distribution_has_flavour(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    row = context.distribution_release(chosen["nvidia_driver"])
    if row and context.flavour not in row["modules"]:
        module = f"{context.flavour} kernel module of driver {chosen['nvidia_driver']}"
        text = f"the archive of {context.os_name} has no {module}"
        nearest = f"flavour {' or '.join(sorted(row['modules']))}"
        yield Conflict("nvidia_driver.flavour", text, row["source"], nearest=nearest)


def distribution_has_companions(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """No archive has the fabric manager or IMEX, and NVIDIA's own must have exactly the driver's version."""
    row = context.distribution_release(chosen["nvidia_driver"])
    if not row:
        return
    asked = [name for name in ("fabric_manager", "imex") if name in context.values]
    needed = list(context.nvswitch) or [name for name in context.instance_types if context.family(name).get("imex")]
    if asked or needed:
        text = f"{', '.join(needed or asked)}: the archive of {context.os_name} has no fabric manager and no IMEX"
        nearest = "leave out nvidia_driver.source (NVIDIA's repository), or these instance types"
        yield Conflict("nvidia_driver.source", text, row["source"], nearest=nearest)


def module_builds_on_kernel(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """A module that DKMS could not build on the newest kernel that was tried: the image would have no driver."""
    driver, flavour = chosen["nvidia_driver"], context.flavour
    tried = [
        row
        for row in context.distribution.get("builds", ())
        if (row["driver"], row["flavour"]) == (driver, flavour) and _is_of_series(row["kernel"], context.kernel)
    ]
    if not tried:
        return
    newest = max(tried, key=lambda row: parts(row["kernel"]))  # 6.1.0-56: the ABI is the number behind the version
    if not newest["builds"]:
        kernel = f"kernel {newest['kernel']}: {newest['error']}"
        text = f"the {flavour} kernel module of driver {driver} does not build on {kernel}"
        other = [row for row in context.distribution["builds"] if row["builds"] and row["kernel"] == newest["kernel"]]
        nearest = " or ".join(f"driver {row['driver']} with flavour {row['flavour']}" for row in other)
        yield Conflict("nvidia_driver.version", text, newest["source"], nearest=nearest)


def _is_of_series(release: str, series: str) -> bool:
    return release.startswith(f"{series}.")


DISTRIBUTION_RULES = (
    (("nvidia_driver",), distribution_has_flavour),
    (("nvidia_driver",), distribution_has_companions),
    (("nvidia_driver",), module_builds_on_kernel),
)
