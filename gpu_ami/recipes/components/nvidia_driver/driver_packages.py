"""The packages of NVIDIA's driver, of what must have its version, and of NVIDIA's package repository."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import NotRequired, TypedDict, cast

from gpu_ami.recipes.facts import Row, Sources, at_least, branch, parts
from gpu_ami.recipes.rules import Assignment, ResolveContext
from validator.plan_document import (
    DriverBranch,
    DriverCompanion,
    DriverOfBase,
    FurtherRepository,
    NvidiaDriver,
    Repository,
)


def package_style(context: ResolveContext) -> str:
    return str(context.os["packages"])


def last_from(rows: Sequence[Row], driver: str) -> Row:
    """The row of the driver: the last one that begins at it or before."""
    return [row for row in rows if at_least(driver, row["from"])][-1]


def _revision(context: ResolveContext, names: Row) -> str:
    """Suffix of the package version: `-1`, `-1ubuntu1`, `-1.amzn2023`."""
    return with_dist(context, names["revision"])


def with_dist(context: ResolveContext, text: str) -> str:
    return text.format(dist=context.os["nvidia_repository"].get("dist", ""))


def library(context: ResolveContext, key: str, cuda: str) -> str:
    """The name of a library's package for a CUDA toolkit."""
    names = context.facts.driver_packages["libraries"][package_style(context)]
    return str(names[key].format(cuda=branch(cuda), cuda_dashed="-".join(cuda.split(".")[:2])))


def packaged_cuda(row: Row, cuda: str) -> str:
    """The CUDA version for which a library is packaged: the toolkit's, else the newest one of its major version."""
    packaged = [version for version in row.get("packaged", []) if branch(version) == branch(cuda)]
    if not packaged or cuda in packaged:
        return cuda if "." in cuda else f"{cuda}.0"
    return str(max(packaged, key=parts))


def nvidia_repository(context: ResolveContext, sources: Sources) -> Repository:
    """NVIDIA's package repository for the image's system, and the key that signs it."""
    facts = context.facts.driver_packages
    key = facts["keys"][context.os["nvidia_repository"].get("key", context.os["family"])]
    repository = facts["repository"]
    architecture = repository["architectures"][context.values["architecture"]]
    folder = f"{repository['base_url']}/{context.os['nvidia_repository']['name']}/{architecture}"
    sources.add("NVIDIA's package repository", repository)
    sources.add("the key of NVIDIA's package repository", key)
    return {
        "url": f"{folder}/",
        "suite": repository["suite"],
        "components": [],
        "key_url": f"{folder}/{key['file']}",
        "key_fingerprint": key["fingerprint"],
    }


def _distribution_section(context: ResolveContext, version: str, sources: Sources) -> NvidiaDriver:
    """The driver of the operating system's own archive: each package in its full version, by suite."""
    system, row = context.distribution, context.distribution_release(version)
    sources.add(f"the archive of {context.os_name}", system)
    sources.add(f"driver packages of {context.os_name}", row)
    elsewhere: Mapping[str, str] = row.get("elsewhere", {})
    suites = [
        {**repository, "keyring": system["keyring"]}
        | {"packages": [name for name, suite in elsewhere.items() if suite == repository["suite"]]}
        for repository in system["repositories"]
    ]
    first = next(part for part in suites if part["suite"] == row["suite"])
    further = [part for part in suites if part is not first]
    section: NvidiaDriver = {
        "version": version,
        "source": "distribution",
        "flavour": context.flavour,
        "package": row["modules"][context.flavour],
        "package_version": row["package_version"],
        "module": row["files"][context.flavour],
        "packages": {name: full for full, names in row["packages"].items() for name in sorted(names)},
        "repository": cast(Repository, {key: value for key, value in first.items() if key != "packages"})
        | {"further": cast(list[FurtherRepository], further)},
    }
    if row["persistence_daemon"] != version:
        section["persistence_daemon"] = row["persistence_daemon"]
        sources.note(
            f"nvidia-persistenced of {context.os_name}'s archive is {row['persistence_daemon']}, the driver {version}"
        )
    return section


def _grid_section(context: ResolveContext, version: str, sources: Sources) -> NvidiaDriver:
    """NVIDIA's GRID driver: one installer of AWS's bucket, and the settings of its licence daemon."""
    facts, asked = context.facts.grid_drivers, context.section("nvidia_driver")
    row = facts["releases"][version]
    file = facts["file"].format(version=version)
    sources.add("AWS's bucket of GRID drivers", facts)
    sources.add(f"GRID driver {version} (vGPU {row['vgpu']})", row)
    sources.note(f"GRID driver {version}: {facts['licence']}")
    sources.note(
        f"{file} is proven on AWS alone: the local region has a replica of it, and no simulated board takes a licence"
    )
    section: NvidiaDriver = {
        "version": version,
        "source": "grid",
        "flavour": context.flavour,
        "url": f"{facts['base_url']}/{row['folder']}/{file}",
        "licence_settings": {"EnableUI": "FALSE"},
    }
    section.update(modules_extra(context))  # type: ignore[typeddict-item]
    if "sha256" in asked:
        section["sha256"] = asked["sha256"]
    else:
        sources.note(
            f"not established: a digest of {file}; AWS publishes none, so a build on AWS needs nvidia_driver.sha256"
        )
    if asked.get("virtual_applications"):
        section["licence_settings"] |= facts["settings"]["virtual_applications"]
        sources.add("GRID virtual applications", facts["settings"])
    return section


def driver_section(context: ResolveContext, versions: Assignment, sources: Sources) -> NvidiaDriver:
    of_source = {"distribution": _distribution_section, "grid": _grid_section}
    section_of = of_source.get(context.driver_source, _vendor_section)
    section = section_of(context, versions["nvidia_driver"], sources)
    if "gsp" in context.section("nvidia_driver"):
        section["gsp"] = context.section("nvidia_driver")["gsp"]
    if options := _options(context, versions, sources):
        section["options"] = options
    return section


def _options(context: ResolveContext, versions: Assignment, sources: Sources) -> dict[str, str]:
    """Options of the kernel module (NVreg_…): what the platforms need, and above it the recipe's."""
    driver, options = versions["nvidia_driver"], dict[str, str]()
    families = {row["family"] for row in context.instance_types.values()}
    for row in context.facts.driver_options["rows"].values():
        if (
            families.intersection(row["families"])
            and at_least(driver, row.get("from", "0"))
            and not ("below" in row and at_least(driver, row["below"]))
            and context.node_name in row.get("nodes", [context.node_name])
            and context.node_name not in row.get("not_nodes", ())
            and all(versions.get(name) for name in row.get("with", ()))
        ):
            options[row["option"]] = row["value"]
            sources.add(f"driver option {row['option']}={row['value']}", row)
    asked: Mapping[str, str] = context.section("nvidia_driver").get("options", {})
    return {**options, **asked}


def _vendor_section(context: ResolveContext, version: str, sources: Sources) -> NvidiaDriver:
    """The driver of NVIDIA's repository: every package at the revision of the driver."""
    names = last_from(context.facts.driver_packages["drivers"][package_style(context)], version)
    sources.add(f"driver package names of {package_style(context)}", names)
    package_version = f"{version}{_revision(context, names)}"
    modules = {flavour: name.format(branch=branch(version)) for flavour, name in names["module"].items()}
    section: NvidiaDriver = {
        "version": version,
        "flavour": context.flavour,
        "package": modules["open" if context.flavour == "boot" else context.flavour],
        "package_version": package_version,
        "packages": {name.format(branch=branch(version)): package_version for name in names["with"]},
        "repository": nvidia_repository(context, sources),
    }
    if context.flavour == "boot":
        section["modules"] = modules
        section["flavour_by_instance_type"] = {
            name: "open" if "open" in gpu.architecture["flavours"] else "proprietary"
            for gpu in context.gpus
            for name in gpu.instance_types
        }
        facts = context.facts.nvidia_drivers["pci_ids"]
        sources.add("PCI ids of GPUs", facts)
        section["flavour_by_pci_id"] = {
            facts["ids"][gpu.row["name"]]: section["flavour_by_instance_type"][gpu.instance_types[0]]
            for gpu in context.gpus
            if gpu.row["name"] in facts["ids"]
        }
    return section


def companion(
    context: ResolveContext, versions: Assignment, sources: Sources, *, component: str, package: str, on: Sequence[str]
) -> DriverCompanion | None:
    """Fabric manager or IMEX at the driver's version; None without a driver, or where no instance type needs it.

    package: the key of its name among the driver's package names. on: the instance types that need it.

    Of a base AMI with a driver: where its release notes name them; checked, not installed.
    """
    driver = versions.get("nvidia_driver")
    if driver is None:
        return None
    if "nvidia_driver" in context.provided:
        return _provided_companion(context, component, on)
    if not on and component not in context.values:
        return None
    names = last_from(context.facts.driver_packages["fabric_manager"][package_style(context)], driver)
    sources.add(f"package names of {component.replace('_', ' ')}", names)
    return {
        "version": driver,
        "package": names[package].format(branch=branch(driver)),
        "package_version": f"{driver}{_revision(context, names)}",
        "instance_types": list(on),
        "repository": nvidia_repository(context, sources),
    }


def _provided_companion(context: ResolveContext, component: str, needed_on: Sequence[str]) -> DriverCompanion | None:
    branches = {branch.version for name in needed_on if (branch := context.branch_of(name))}
    version = context.provided.get(component) or next(iter(branches), None)
    if not needed_on or version is None:
        return None
    return {
        "version": version,
        "provided_by": context.base_ami,
        "instance_types": list(needed_on),
    }


class SystemPackages(TypedDict):
    """Packages of the system's own archive ({release}: what `uname -r` prints); kernel_packages: by kernel series."""

    system_packages: list[str]
    kernel_packages: NotRequired[dict[str, list[str]]]


def modules_extra(context: ResolveContext, *others: str) -> SystemPackages:
    """The system's package of further kernel modules, where its series has one, and others."""
    series = context.followed_kernels or (context.kernel,)
    rows = {one: context.kernel_packages(one) for one in series}
    extra = {one: [str(row["modules_extra"])] for one, row in rows.items() if "modules_extra" in row}
    if len(series) > 1 and extra:
        return {"system_packages": list(others), "kernel_packages": extra}
    return {"system_packages": [*extra.get(context.kernel, ()), *others]}


def of_base(context: ResolveContext, sources: Sources) -> DriverOfBase:
    """What the plan says of the base AMI's driver beside its version: nothing where there is one branch."""
    if not context.driver_branches:
        return {}
    row = context.variant
    section: DriverOfBase = {
        "flavour": "boot",
        "flavour_by_instance_type": {
            name: one.flavours[name]
            for name in context.instance_types
            for one in context.driver_branches
            if name in one.flavours
        },
        "branches": {
            one.name: DriverBranch(
                version=one.version,
                tree=f"{row['trees']}/{one.name}",
                open_list=row["open_list"].format(branch=branch(one.version)),
                instance_types=list(one.flavours),
            )
            for one in context.driver_branches
        },
        "selects_at_boot": list(row["selects_at_boot"]),
    }
    without_gsp = [name for name, facts in context.instance_types.items() if facts["family"] in row["without_gsp"]]
    if without_gsp:
        section["without_gsp"] = without_gsp
    if fractions := [name for name, facts in context.instance_types.items() if "fraction_of" in facts.get("gpu", {})]:
        section["fractions"] = fractions
        sources.note(
            f"{', '.join(fractions)}: a fraction of a GPU (vGPU) is proven on AWS alone: the local region has none, and"
            " CUDA has no unified memory there"
        )
    branches = "; ".join(map(str, context.driver_branches))
    sources.note(f"{context.base_ami} takes one of its drivers at the first boot, by the instance type: {branches}")
    return section
