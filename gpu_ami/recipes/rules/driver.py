"""Rules of the driver: CUDA, GPU architectures, kernel modules, package repositories, and libraries built for CUDA.

With those of a driver from the operating system's own archive (`nvidia_driver.source: distribution`).
"""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.facts import at_least, at_most, branch, parts
from gpu_ami.recipes.rules.incompatibilities import advisory_rule
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, Gpu, ResolveContext


def runs_natively(context: ResolveContext, driver: str, cuda: str) -> bool:
    """Whether the driver was released for this CUDA or a newer one; False where that is not known."""
    row = context.facts.cuda["releases"][cuda]
    is_new = "unknown" in row and cuda.count(".") == 1  # its row has the driver of an older toolkit
    return not is_new and at_least(driver, row["minimum_driver"])


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
    source = major["source"] if "unknown" in row else row["source"]  # the floor is of the major version
    yield Conflict("cuda.version", text, source, ("nvidia_driver", "cuda"))


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
            apart = apart_by_driver(context)
            yield Conflict("nvidia_driver.version", text, limits["source"], () if apart else ("nvidia_driver",), apart)


def apart_by_driver(context: ResolveContext) -> str:
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


BOTH_MODULES = "flavour boot (both modules, chosen by PCI id)"


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
            nearest = f"flavour {min(fitting)}" if fitting else BOTH_MODULES
            if not fitting and "efa" in context.values and "efa" not in context.provided:
                nearest = (
                    "an image for each, or flavour boot without efa"  # as peer_memory_is_of_one_module refuses both
                )
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


def options_have_no_key(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """An option that a key of the recipe writes is not given a second time."""
    if "NVreg_EnableGpuFirmware" in context.section("nvidia_driver").get("options", {}):
        text, source = "GSP firmware has a key of its own", context.facts.gpudirect["gsp"]["source"]
        yield Conflict("nvidia_driver.options", text, source, nearest="nvidia_driver.gsp true or false")


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
        settled = branch(chosen["cuda"]) in row.get("not_for", ())
        yield Conflict(f"{component}.version", text, row["settled" if settled else "source"], (component, "cuda"))


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
    advisory_rule("nvidia_driver"),
    (("nvidia_driver", "cuda"), driver_runs_cuda),
    (("nvidia_driver",), gpu_runs_driver),
    (("cuda",), gpu_runs_cuda),
    (("cudnn",), gpu_runs_cudnn),
    (("nvidia_driver",), flavour_fits),
    (("nvidia_driver",), gsp_can_be_off),
    (("nvidia_driver",), options_have_no_key),
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


def node_has_variant(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """The variant is one of the node family's, and is there for the image's architecture."""
    asked, known = context.node_variant, context.node.get("variants", {})
    if asked is None:
        return
    if asked not in known:
        text = f"node {context.node_name} has no variant {asked}"
        nearest = f"node_variant {' or '.join(known)}" if known else "leave out node_variant, or node eks"
        yield Conflict("node_variant", text, context.node["source"], nearest=nearest)
    elif context.os_name not in context.variant["source_ami"]:
        text = f"{context.base_ami} has no base AMI with {context.os_name}"
        nearest = f"os {' or '.join(context.variant['source_ami'])}, or leave out node_variant"
        yield Conflict("node_variant", text, context.variant["source"], nearest=nearest)
    elif context.values["architecture"] not in context.variant["architectures"]:
        known_for, architecture = " and ".join(context.variant["architectures"]), context.values["architecture"]
        text = f"the facts know {context.base_ami} for {known_for} alone, the image is {architecture}"
        yield Conflict("node_variant", text, context.variant["source"], nearest="leave out node_variant")


def base_drives_types(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """Every instance type takes a branch of the base AMI."""
    for name, row in context.instance_types.items():
        if context.driver_branches and context.branch_of(name) is None and "refused" not in context.family(name):
            driven = [family for branch in context.variant["driver_branches"].values() for family in branch["families"]]
            text = f"{name}: {context.base_ami} has no driver for {row['family']}"
            nearest = f"types of {', '.join(driven)}; or leave out node_variant"
            yield Conflict("instance_types", text, context.base_ami_source, nearest=nearest)


def builder_takes_no_branch(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """A builder with a GPU would take a branch for all machines: the base AMI takes one, and removes the others."""
    builder = str(context.values["build"]["instance_type"])
    row = context.facts.instance_types["instance_types"].get(builder, {})
    if context.driver_branches and "gpu" in row:
        text = (
            f"{builder} has a GPU: {context.base_ami} takes one of its drivers at the first boot with one and removes "
            f"the others, so every machine of the image would have that of {builder}"
        )
        nearest = "leave out build.instance_type, or a type without a GPU"
        yield Conflict("build.instance_type", text, context.base_ami_source, nearest=nearest)


def base_chooses_the_driver(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """A recipe names no version of the driver: the type of the machine decides it."""
    asked = context.section("nvidia_driver").get("version")
    if context.driver_branches and asked:
        has = "; ".join(map(str, context.driver_branches))
        text = f"driver {asked} on {context.base_ami}, whose base AMI takes one of its own at the first boot: {has}"
        nearest = "leave out nvidia_driver, or node_variant"
        yield Conflict("nvidia_driver.version", text, context.base_ami_source, nearest=nearest)


BRANCH_RULES = (node_has_variant, base_drives_types, builder_takes_no_branch, base_chooses_the_driver)


_SOURCE, _VENDORS = "nvidia_driver.source", "leave out nvidia_driver.source (NVIDIA's repository)"
_OF_GRID = ("sha256", "folder", "virtual_applications")


def grid_keys_have_grid(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """Keys that say something of the GRID driver alone."""
    for key in _OF_GRID:
        if key in context.section("nvidia_driver") and not context.is_grid_driver:
            text = f"nvidia_driver.{key} is of the GRID driver, and the image has another"
            table = "variables/facts/grid_drivers.yml"
            yield Conflict(f"nvidia_driver.{key}", text, table, nearest=f"source grid, or leave out {key}")


def base_has_no_driver(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """A base AMI with a driver of its own would have two of them."""
    if context.driver_source == "base" and context.section("nvidia_driver").get("source") == "grid":
        text = f"the base AMI of {context.base_ami} has its own driver {context.provided['nvidia_driver']}"
        yield Conflict(_SOURCE, text, context.base_ami_source, nearest="leave out nvidia_driver.source")


def grid_is_for_the_image(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """AWS publishes the driver for some systems and architectures."""
    facts, architecture = context.facts.grid_drivers, context.values["architecture"]
    if not context.is_grid_driver:
        return
    if architecture not in facts["architectures"]:
        text = f"the GRID driver is for {', '.join(facts['architectures'])}, the image is {architecture}"
        yield Conflict(_SOURCE, text, facts["source"], nearest=_VENDORS)
    if context.os_name not in facts["systems"]:
        text = f"the role installs the GRID driver on {', '.join(facts['systems'])}, not on {context.os_name}"
        yield Conflict(_SOURCE, text, facts["source"], nearest=f"os {' or '.join(facts['systems'])}")


def grid_is_licensed_for_types(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """The licence is paid with some instance families alone: elsewhere the driver loses performance after a day."""
    facts = context.facts.grid_drivers
    families = _families(context)
    for name, row in context.instance_types.items():
        if context.is_grid_driver and row["family"] not in families:
            text = f"{name}: AWS's GRID licence covers {', '.join(families)}"
            yield Conflict(_SOURCE, text, facts["families"]["source"], nearest=f"{_VENDORS}, or other instance types")


def grid_release_is_for_types(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    """A family needs the vGPU release that came with it, or a later one."""
    if not context.is_grid_driver:
        return
    facts, families = context.facts.grid_drivers, _families(context)
    release = facts["releases"][chosen["nvidia_driver"]]["vgpu"]
    for name, row in context.instance_types.items():
        first = str(families.get(row["family"], {}).get("first", "0"))
        if not at_least(release, first):
            text = f"{name} needs vGPU {first} or later, driver {chosen['nvidia_driver']} is of vGPU {release}"
            yield Conflict("nvidia_driver.version", text, facts["families"]["source"], ("nvidia_driver",))


def grid_has_gsp_off(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """AWS's guide asks for it on some families; the open kernel module cannot do without the firmware."""
    without = {family for family, row in _families(context).items() if row.get("gsp") is False}
    needs = [name for name, row in context.instance_types.items() if row["family"] in without]
    if context.is_grid_driver and needs and context.section("nvidia_driver").get("gsp") is not False:
        text = f"the GRID driver on {', '.join(needs)} needs the GSP firmware off"
        source = context.facts.grid_drivers["families"]["source"]
        yield Conflict("nvidia_driver.gsp", text, source, nearest="gsp false with flavour proprietary")


def grid_has_flavour(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    if context.is_grid_driver and context.flavour == "boot":
        text = "the GRID driver's installer installs one kernel module, open or proprietary"
        source = context.facts.grid_drivers["source"]
        yield Conflict("nvidia_driver.flavour", text, source, nearest="flavour open or proprietary")


def grid_has_companions(context: ResolveContext, _chosen: Assignment) -> Iterator[Conflict]:
    """Fabric manager and IMEX are packages of NVIDIA's repository, which need its driver packages' version."""
    asked = [name for name in ("fabric_manager", "imex") if name in context.values]
    if context.is_grid_driver and asked:
        text = f"{' and '.join(asked)} with the GRID driver: no instance type that its licence covers needs them"
        yield Conflict(asked[0], text, context.facts.grid_drivers["source"], nearest=f"leave out {' and '.join(asked)}")


def _families(context: ResolveContext) -> dict[str, dict[str, object]]:
    rows = context.facts.grid_drivers["families"]
    return {name: row for name, row in rows.items() if isinstance(row, dict)}


GRID_RULES = (
    ((), grid_keys_have_grid),
    ((), base_has_no_driver),
    ((), grid_is_for_the_image),
    ((), grid_is_licensed_for_types),
    (("nvidia_driver",), grid_release_is_for_types),
    ((), grid_has_gsp_off),
    ((), grid_has_flavour),
    ((), grid_has_companions),
)
