"""The plan's sections of NVIDIA's driver, fabric manager and IMEX, and NVIDIA's package repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from gpu_ami.recipes.citations import Sources
from gpu_ami.recipes.facts import Row
from gpu_ami.recipes.resolve_context import World
from gpu_ami.recipes.versions import at_least, branch
from validator.plan_document import DriverCompanion, NvidiaDriver, Repository

# From this generation on, NVSwitch needs NVIDIA's subnet manager beside the fabric manager: amazon-eks-ami 81fec2e8.
_NVLSM_FROM = 4
# The InfiniBand tools that nvlsm needs: amazon-eks-ami 81fec2e8 install-nvidia-driver.sh (2026-07-23).
_INFINIBAND = {"debian": ("infiniband-diags",), "redhat": ("libibumad", "infiniband-diags")}


def base_ami(world: World) -> str:
    return f"{world.node_name} {world.node_version}"


def package_style(world: World) -> str:
    return str(world.os["packages"])


def _last_from(rows: Sequence[Row], driver: str) -> Row:
    return [row for row in rows if at_least(driver, row["from"])][-1]


def _revision(world: World, names: Row) -> str:
    """Suffix of the package version: `-1`, `-1ubuntu1`, `-1.amzn2023`."""
    return with_dist(world, names["revision"])


def with_dist(world: World, text: str) -> str:
    return text.format(dist=world.os["nvidia_repository"].get("dist", ""))


def nvidia_repository(world: World, sources: Sources) -> Repository:
    """NVIDIA's package repository for the image's system, and the key that signs it."""
    facts = world.facts.driver_packages
    key = facts["keys"]["redhat" if world.os["family"] == "redhat" else "debian"]
    repository = facts["repository"]
    architecture = repository["architectures"][world.values["architecture"]]
    folder = f"{repository['base_url']}/{world.os['nvidia_repository']['name']}/{architecture}"
    sources.add("NVIDIA's package repository", repository)
    sources.add("the key of NVIDIA's package repository", key)
    return {
        "url": f"{folder}/",
        "suite": repository["suite"],
        "components": [],
        "key_url": f"{folder}/{key['file']}",
        "key_fingerprint": key["fingerprint"],
    }


def driver_section(world: World, versions: Mapping[str, str], sources: Sources) -> NvidiaDriver:
    version = versions["nvidia_driver"]
    names = _last_from(world.facts.driver_packages["drivers"][package_style(world)], version)
    sources.add(f"driver package names of {package_style(world)}", names)
    package_version = f"{version}{_revision(world, names)}"
    modules = {flavour: name.format(branch=branch(version)) for flavour, name in names["module"].items()}
    section: NvidiaDriver = {
        "version": version,
        "flavour": world.flavour,
        "package": modules["open" if world.flavour == "boot" else world.flavour],
        "package_version": package_version,
        "packages": {name.format(branch=branch(version)): package_version for name in names["with"]},
        "repository": nvidia_repository(world, sources),
    }
    if world.flavour == "boot":
        section["modules"] = modules
        section["flavour_by_instance_type"] = {
            name: "open" if "open" in gpu.architecture["flavours"] else "proprietary"
            for gpu in world.gpus
            for name in gpu.instance_types
        }
        facts = world.facts.nvidia_drivers["pci_ids"]
        sources.add("PCI ids of GPUs", facts)
        section["flavour_by_pci_id"] = {
            facts["ids"][gpu.row["name"]]: section["flavour_by_instance_type"][gpu.instance_types[0]]
            for gpu in world.gpus
            if gpu.row["name"] in facts["ids"]
        }
    if "gsp" in world.section("nvidia_driver"):
        section["gsp"] = world.section("nvidia_driver")["gsp"]
    return section


def companions(world: World, driver: str, sources: Sources) -> dict[str, DriverCompanion]:
    """Fabric manager for types with an NVSwitch, IMEX where memory spans machines; at the driver's version."""
    names = _last_from(world.facts.driver_packages["fabric_manager"][package_style(world)], driver)
    imex = [name for name in world.instance_types if world.family(name).get("imex")]
    companions: dict[str, DriverCompanion] = {}
    for component, needed_on, key in (("fabric_manager", world.nvswitch, "package"), ("imex", imex, "imex")):
        if needed_on or component in world.values:
            sources.add(f"package names of {component.replace('_', ' ')}", names)
            companions[component] = {
                "version": driver,
                "package": names[key].format(branch=branch(driver)),
                "package_version": f"{driver}{_revision(world, names)}",
                "instance_types": list(needed_on),
                "repository": nvidia_repository(world, sources),
            }
    nvlsm = [name for name in world.nvswitch if world.family(name)["nvswitch_generation"] >= _NVLSM_FROM]
    if nvlsm:
        _add_subnet_manager(companions["fabric_manager"], world, nvlsm, sources)
    return companions


def _add_subnet_manager(section: DriverCompanion, world: World, instance_types: list[str], sources: Sources) -> None:
    """nvlsm in its own version, and the system's packages that it needs ({release}: what `uname -r` prints)."""
    row = _last_from(world.facts.driver_packages["nvlsm"], section["version"])
    sources.add("version of nvlsm", row)
    kernels = world.os["kernel_packages"]
    modules = (kernels.get(world.kernel) or kernels["default"]).get("modules_extra")
    section["nvlsm_instance_types"] = instance_types
    section["packages"] = {"nvlsm": row["version"]}
    section["system_packages"] = [*([modules] if modules else []), *_INFINIBAND[world.os["family"]]]


def provided_companions(world: World, _driver: str, _sources: Sources) -> dict[str, DriverCompanion]:
    """Fabric manager and IMEX of the base AMI, where its release notes name them: checked, not installed."""
    imex = [name for name in world.instance_types if world.family(name).get("imex")]
    needed = {"fabric_manager": list(world.nvswitch), "imex": imex}
    return {
        name: {
            "version": world.provided[name],
            "provided_by": base_ami(world),
            "instance_types": types,
        }
        for name, types in needed.items()
        if types and name in world.provided
    }
