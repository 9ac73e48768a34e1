"""Rows for one plan of what the facts lack: versions that a recipe names exactly, instance types that EC2 describes.

A version is planned if it is well-formed and plausible. Well-formed: as many numbers as the known versions of its table
have, each of at most as many digits and one more (a driver: `620.70.06` or `595.64`). Plausible: a list of releases has
it (released.yml); or it is newer than every known version, by at most one major and 20 minors (a driver: by at most 60
branches); or it is a driver newer than the known releases of a branch that is still supported; or, of a component
without a list of releases, it is of a known minor version. A GRID driver is planned with its folder in AWS's bucket,
MKL where its number is one of the repository's. Every other version is refused with the nearest known one, as a typing
error.

What holds for a whole series holds for a version in it: a CUDA major or a device that a neighbour dropped stays
dropped, a new CUDA major needs at least the driver of the toolkit before it, and an installer has no newer module than
its successor. Rules that rest on such a bound are not skipped: their source is the neighbour's.

The GPU of an instance type has to be one that the facts know: clocks, power limit and compute capability, which plan
and checks need, are in no answer of EC2. Of a new family, EC2 does not say whether there are NVSwitches and IMEX, nor
which GSP rule holds: they are those of the family with the nearest name, and the row is unverified.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts.tables import (
    Facts,
    Row,
    at_least,
    branch,
    matching,
    nearest_first,
    parts,
    released,
)

ACCEPTED = "unverified-"
NO_ROW = "no row of the facts; what it needs is taken from its nearest neighbour"

# Component → what the neighbour's row stands in for, and so which rules judge nothing but a guess.
SKIPPED = {
    "nvidia_driver": "end of support, highest CUDA, GPU limits of this release",
    "cuda": "the driver that it is made for (runs natively or by compatibility), cuda-compat",
    "cudnn": "the CUDA majors that it is built for, last release of a GPU architecture",
    "nccl": "the CUDA majors that it is built for, its packaged CUDA",
    "dcgm": "the CUDA majors that it is built for, epoch and revision of its packages",
    "container_toolkit": "CDI",
    "mkl": "none: no rule rests on a release of MKL",
    "grid_driver": "its file in the folder of the bucket, what its release is known to break",
    "efa": "its driver, libfabric, rdma-core and plugin, beyond what the installers before and after it have",
    "neuron": "devices and systems that it adds; its packages are taken by their minor versions",
    "gdrcopy": "the kernels and CUDA versions that it needs",
    "gds": "the kernels on which its module builds, beyond what the releases before it build on",
    "ofi_nccl": "the NCCL and libfabric that it needs, beyond what the release before it needs",
    "nccl_tests": "the CUDA and NCCL that it compiles with",
    "kernel": "which modules build on it, the names of its packages",
    "instance_type": "NVSwitches, IMEX and GSP of its family",
    "node_version": "the kernel that its base AMI boots, what the base AMI brings",
}
# Of one release alone: a neighbour's would be wrong.
_OF_ONE_RELEASE = (
    "packaged", "compat", "reported", "regression", "minimum_ofi_nccl", "kernel_module", "libfabric", "rdma_core",
    "ofi_nccl", "package", "tag", "commit", "tested_nccl",
)  # fmt: skip
_NOT_RELEASED = ("kernel", "instance_type", "node_version", "grid_driver")
FROM_TAGS = ("gdrcopy", "ofi_nccl", "nccl_tests")
# Lists in the rows of a component from which vendors drop values for good.
_LISTED = {"cudnn": ("cuda",), "nccl": ("cuda",), "dcgm": ("cuda",), "neuron": ("devices", "operating_systems")}
_OF_A_RELEASE = "its packages' revision, what it is known to break"
NAMES = tuple(f"{ACCEPTED}{name}" for name in SKIPPED)


@dataclass(frozen=True)
class Unknown:
    """A version without a row, the known version whose row was taken, and the rules that are skipped for it."""

    component: str
    version: str
    neighbour: str
    skipped: str = ""

    @property
    def note(self) -> str:
        """What the plan says first."""
        accept = f"`accept: [{ACCEPTED}{self.component}]`"
        needs = f"`gpu-ami sources` looks it up; `build` needs it found there, or {accept}"
        if self.component in ("kernel", "instance_type"):
            needs = f"No source of a plan tells of them: `build` needs {accept}"
        return (
            f"unverified: {self.component} {self.version} has no row in the facts, and is planned with what is known "
            f"of {self.neighbour}. Rules skipped: {self.skipped or SKIPPED[self.component]}. {needs}"
        )


def with_unknown(facts: Facts, values: Mapping[str, Any]) -> tuple[Facts, list[Unknown]]:
    """The facts with a row for each version of a recipe that is plausible and has none; and these versions."""
    unknown: list[Unknown] = []
    facts = _with_cuda_update(facts, values)
    for component in SKIPPED:
        version = _asked(values, component) if component not in _NOT_RELEASED else ""
        known = _known(facts, component) if version else []
        if not known or matching(version, known) or not is_plausible(facts, component, version):
            continue
        if component in FROM_TAGS and not values[component].get("commit"):
            continue  # refused: what is built from source is known by its commit
        unknown.append(_unknown(facts, component, version, known))
        facts = _with_row(facts, unknown[-1], values[component])
    facts, of_grid = _with_grid_driver(facts, values)
    facts, of_kernel = _with_kernel(facts, values)
    facts, of_node = _with_node_version(facts, values)
    unknown += [*of_grid, *of_kernel, *of_node, *_described(facts, values)]
    return facts, unknown


def _unknown(facts: Facts, component: str, version: str, known: list[str]) -> Unknown:
    row = facts.nvidia_drivers["branches"].get(branch(version)) if component == "nvidia_driver" else None
    if row is not None:
        return Unknown(component, version, str(row["releases"][-1]), _OF_A_RELEASE)
    toolkit = version.rpartition(".")[0]
    if component == "cuda" and toolkit in known:
        return Unknown(component, version, toolkit, "the driver that this update is made for")
    return Unknown(component, version, nearest_first(version, known)[0])


def _asked(values: Mapping[str, Any], component: str) -> str:
    """The version that a recipe names; "" for none, for `newest`, and for a driver of another source than NVIDIA's."""
    section = values.get(component)
    if not isinstance(section, Mapping) or section.get("source", "vendor") != "vendor":
        return ""
    version = str(section.get("version", ""))
    return version if version[:1].isdigit() else ""


def _known(facts: Facts, component: str) -> list[str]:
    releases = facts.vendor_driver_releases if component == "nvidia_driver" else facts.releases(component)
    return [str(version) for version in releases]


def is_plausible(facts: Facts, component: str, version: str) -> bool:
    """By the rule at the top of this file."""
    known = _known(facts, component)
    newest = max(known, key=parts)
    if component == "cuda" and version.count(".") == 2:  # an update of a toolkit: its packages have a version
        toolkit = version.rpartition(".")[0]
        is_toolkit = matching(toolkit, known) != [] or is_plausible(facts, component, toolkit)
        return is_toolkit and len(parts(version)[2:]) == 1 and parts(version)[2] < 10
    if component == "mkl":  # the repository ends with the releases of 2020; later ones are oneAPI's
        return re.fullmatch(r"20(?:1[89]|20)\.\d-\d{3}", version) is not None
    if not _is_well_formed(version, known, component):
        return False
    if released(facts, component, version):
        return component != "cuda"
    if component == "nvidia_driver":
        row = facts.nvidia_drivers["branches"].get(branch(version))
        if row is not None:
            return parts(version) > parts(row["releases"][-1]) and row["end_of_support"] >= facts.read_on[:7]
        return int(branch(newest)) < int(branch(version)) <= int(branch(newest)) + 60
    if parts(version) > parts(newest):
        major, minor = parts(version)[0] - parts(newest)[0], parts(version)[1] - parts(newest)[1]
        return (major == 0 and minor <= 20) or (major == 1 and parts(version)[1] <= 20)
    has_list = component in facts.released["components"] or component in ("cuda", "cudnn")
    return not has_list and any(parts(version)[:2] == parts(other)[:2] for other in known)


def _is_well_formed(version: str, known: list[str], component: str) -> bool:
    """`620.70.06` as `610.57.04`: as many numbers, none with two digits more than any known one has there."""
    if component == "nvidia_driver":
        return re.fullmatch(r"\d{3}\.\d{2,3}(?:\.\d{2})?", version) is not None
    numbers = version.split(".")
    alike = [other.split(".") for other in known if other.count(".") == version.count(".")]
    widest = [max(map(len, column)) for column in zip(*alike, strict=True)]
    fits = [number.isdigit() and len(number) <= most + 1 for number, most in zip(numbers, widest, strict=False)]
    return bool(alike) and all(fits)


def _mark(facts: Facts, unknown: Unknown) -> dict[str, Any]:
    """What makes a neighbour's row one that nobody wrote: rules that rest on it are skipped (NO_ROW is its source)."""
    return {"source": NO_ROW, "date": facts.read_on, "unverified": True, "unknown": True, "note": unknown.note}


def _with_row(facts: Facts, unknown: Unknown, section: Mapping[str, Any]) -> Facts:
    component, version, near = unknown.component, unknown.version, unknown.neighbour
    mark = _mark(facts, unknown)
    if component == "nvidia_driver":
        return _with_driver(facts, version, mark)
    table = facts.table(component)
    row: dict[str, Any] = {
        key: value for key, value in table["releases"][near].items() if key not in _OF_ONE_RELEASE
    } | mark
    row |= _bounds(table["releases"], component, version)
    if component == "cuda":
        row["package"] = f"{version}-1" if version.count(".") == 2 else f"{version}.*"
        facts = _with_cuda_major(facts, version, mark)
        table = facts.table(component)
    elif component == "cudnn":
        row["full"] = f"{version}*"
    elif component == "mkl":
        row["package"] = f"intel-mkl-{version}"
    elif component == "efa":
        row["bundled"] = False  # which plugin it has is not known, so none is compared
    elif component == "neuron":
        row |= neuron_packages(table["releases"][near], near, version)
    elif component in FROM_TAGS:
        row |= {"tag": f"v{version}", "commit": section["commit"]}
    return _replaced(facts, component, {**table, "releases": {**table["releases"], version: row}})


def _bounds(releases: Mapping[str, Row], component: str, version: str) -> dict[str, Any]:
    """What the known versions before and after it settle: `settled` is their source; `not_for` values of a list that
    were dropped before it or came after it; `at_most` a version that its successor has.
    """
    order = sorted(releases, key=parts)
    older = [name for name in order if parts(name) < parts(version)]
    newer = [name for name in order if parts(name) > parts(version)]
    bounds: dict[str, Any] = {}
    for key in _LISTED.get(component, ()):
        before = set(releases[older[-1]][key]) if older else set()
        after = set(releases[newer[0]][key]) if newer else set()
        ever = sorted({str(value) for row in releases.values() for value in row[key]})
        bounds[key] = [value for value in ever if value in before | after]
        bounds["not_for"] = [*bounds.get("not_for", ()), *(value for value in ever if value not in before | after)]
        bounds["settled"] = releases[older[-1] if older else newer[0]]["source"]
    if component == "efa" and newer:
        has = {key: releases[newer[0]].get(key) for key in ("kernel_module", "libfabric")}
        bounds["at_most"] = {key: value for key, value in has.items() if value}
    return bounds


def _with_cuda_update(facts: Facts, values: Mapping[str, Any]) -> Facts:
    """An update that the recipe names (13.0.3), as a toolkit of its own. No other recipe's plan chooses one."""
    version, table = _asked(values, "cuda"), facts.cuda
    driver, toolkit = table["updates"]["drivers"].get(version), table["releases"].get(version.rpartition(".")[0])
    if driver is None or toolkit is None:
        return facts
    row = {key: value for key, value in toolkit.items() if key != "compat"}
    row |= {"minimum_driver": driver, "package": f"{version}-1"}
    row |= {key: table["updates"][key] for key in ("source", "date")}
    return _replaced(facts, "cuda", {**table, "releases": {**table["releases"], version: row}})


def _with_cuda_major(facts: Facts, version: str, mark: Row) -> Facts:
    """A new major version needs at least the driver of the toolkit before it: every major so far needed a newer one."""
    table = facts.cuda
    if branch(version) in table["majors"]:
        return facts
    newest = table["releases"][max(table["releases"], key=parts)]
    row = {"floor": newest["minimum_driver"], "forward_from": [], "source": newest["source"], "date": mark["date"]}
    return _replaced(facts, "cuda", {**table, "majors": {**table["majors"], branch(version): row}})


def neuron_packages(near: Row, neighbour: str, version: str) -> dict[str, str]:
    """Minor versions of a release's packages: each grows with the release's own, by one (2.26.1 to 2.33.0)."""
    step = parts(version)[1] - parts(neighbour)[1]
    packages = {}
    for key in ("driver", "runtime", "collectives", "tools"):
        if key in near:
            major, minor = parts(str(near[key]))[:2]
            packages[key] = f"{major}.{minor + step}."
    return packages


def _with_driver(facts: Facts, version: str, mark: Row) -> Facts:
    branches = dict(facts.nvidia_drivers["branches"])
    name = branch(version)
    if name in branches:
        branches[name] = {**branches[name], "releases": [*branches[name]["releases"], version]}
    else:
        newest = branches[max(branches, key=int)]
        branches[name] = {**newest, **mark, "kind": "unknown", "end_of_support": "9999-12", "releases": [version]}
    return _replaced(facts, "nvidia_drivers", {**facts.nvidia_drivers, "branches": branches})


def _with_grid_driver(facts: Facts, values: Mapping[str, Any]) -> tuple[Facts, list[Unknown]]:
    """A GRID driver whose folder in the bucket the recipe names: the facts cannot know it."""
    section = values.get("nvidia_driver")
    if not isinstance(section, Mapping) or section.get("source") != "grid" or "folder" not in section:
        return facts, []
    version, folder, table = str(section.get("version", "")), str(section["folder"]), facts.grid_drivers
    known = [str(release) for release in table["releases"]]
    if matching(version, known) or not _is_well_formed(version, known, "nvidia_driver"):
        return facts, []
    unknown = Unknown("grid_driver", version, nearest_first(version, known)[0])
    mark = _mark(facts, unknown)
    if version not in facts.driver_releases:
        facts = _with_driver(facts, version, mark)
    row = {"vgpu": folder.removeprefix("grid-"), "folder": folder, **mark}
    releases = {**table["releases"], version: row}
    return _replaced(facts, "grid_drivers", {**table, "releases": releases}), [unknown]


def _with_kernel(facts: Facts, values: Mapping[str, Any]) -> tuple[Facts, list[Unknown]]:
    """A series newer than all that the facts know of the system; of a package that rolls to the next one, also between.

    A system with a package for each series (Amazon Linux) has no others between them.
    """
    section, name = values.get("kernel"), str(values.get("os"))
    asked = str(section.get("version", "")) if isinstance(section, Mapping) else ""
    system = facts.operating_systems.get(name)
    if not asked or system is None or asked in map(str, system["kernels"]):
        return facts, []
    known = sorted(map(str, system["kernels"]), key=parts)
    oldest = known[0] if "default" in system["kernel_packages"] else known[-1]
    is_possible = parts(oldest) < parts(asked) and parts(asked)[0] <= parts(known[-1])[0] + 1 and parts(asked)[1] <= 30
    if not is_possible or values.get("node", "ec2") != "ec2":
        return facts, []
    near = next((one for one in known if parts(asked) < parts(one)), known[-1])
    rows = dict(system["kernel_packages"])
    is_rolled_to = "default" in rows and parts(asked) > parts(known[-1])  # by the system's rolling package
    if near in rows and not is_rolled_to:  # packages may have the series in their names
        rows[asked] = _renamed(rows[near], near, asked)
    row = {**system, "kernels": [*system["kernels"], asked], "kernel_packages": rows}
    return _replaced(facts, "operating_systems", {**facts.operating_systems, name: row}), [
        Unknown("kernel", asked, near)
    ]


def _renamed(value: Any, old: str, new: str) -> Any:
    if isinstance(value, dict):
        return {key: _renamed(item, old, new) for key, item in value.items()}
    if isinstance(value, list):
        return [_renamed(item, old, new) for item in value]
    return value.replace(old, new) if isinstance(value, str) else value


def _with_node_version(facts: Facts, values: Mapping[str, Any]) -> tuple[Facts, list[Unknown]]:
    """A release of an orchestrator that its row names without its content, or one newer than the known ones."""
    name, asked = str(values.get("node")), str(values.get("node_version") or "")
    family = facts.node_families.get(name)
    known = [str(version) for version in (family or {}).get("versions", {})]
    if family is None or not asked or not known or asked in known or asked in family.get("ended_versions", {}):
        return facts, []
    if asked not in family.get("released", {}) and not _is_next_release(asked, known):
        return facts, []
    near = nearest_first(asked, known)[0]
    unknown = Unknown("node_version", asked, near)
    row = {**family, "versions": {**family["versions"], asked: {**family["versions"][near], **_mark(facts, unknown)}}}
    return _replaced(facts, "node_families", {**facts.node_families, name: row}), [unknown]


def _is_next_release(asked: str, known: list[str]) -> bool:
    """A date (`20261009`), at most a year after the newest; or a patch, one of the next three minors, or of the next
    major's first four.
    """
    newest = max(known, key=parts)
    if re.fullmatch(r"20\d{6}", newest):
        try:
            day = datetime.date.fromisoformat(asked) if re.fullmatch(r"20\d{6}", asked) else None
        except ValueError:
            return False
        last = datetime.date.fromisoformat(newest) + datetime.timedelta(days=365)
        return day is not None and datetime.date.fromisoformat(min(known)) < day <= last
    if asked.count(".") != newest.count(".") or not at_least(asked, newest):
        return False
    major, minor = parts(asked)[0] - parts(newest)[0], parts(asked)[1]
    return (
        major <= 1
        and minor <= (3 if major else parts(newest)[1] + 3)
        and max(parts(asked)) <= max(100, *parts(newest)) + 10
    )


def _described(facts: Facts, values: Mapping[str, Any]) -> list[Unknown]:
    """Instance types of families that EC2 alone tells of (described_types)."""
    rows = facts.instance_types["instance_types"]
    names = [name for name in values.get("instance_types", ()) if "unknown" in rows.get(name, {})]
    return [Unknown("instance_type", ", ".join(names), rows[names[0]]["unknown"])] if names else []


def _replaced(facts: Facts, table: str, content: Row) -> Facts:
    return Facts({**facts.tables, table: content}, facts.site)


Described = Mapping[str, Any]
_STEPS = "docs/tasks/add-an-instance-type.md has the steps"


def with_described(facts: Facts, described: Iterable[Described], where: str, today: str) -> Facts:
    """The facts with a row for each of the types (InstanceTypes of the answer). where: the place that was asked.

    UsageError: a type has no accelerator that images are built for, or a GPU that the facts do not know.
    """
    table = dict(facts.instance_types)
    types, families = dict(table["instance_types"]), dict(table["families"])
    for answer in described:
        name = str(answer["InstanceType"])
        source = {"source": f"EC2 DescribeInstanceTypes ({where})", "date": today}
        accelerator = _accelerator(facts, name, answer)
        family = name.partition(".")[0]
        if family not in families:
            families[family] = _family(facts, family, _architecture(answer), accelerator) | source
        types[name] = _type(name, families[family], answer, accelerator) | source
        if "nearest" in families[family]:
            note = families[family]["note"]
            types[name] |= {"unverified": True, "unknown": families[family]["nearest"], "note": f"{name}: {note}"}
    return Facts(
        {**facts.tables, "instance_types": {**table, "instance_types": types, "families": families}}, facts.site
    )


def _accelerator(facts: Facts, name: str, answer: Described) -> dict[str, Any]:
    """`gpu` or `neuron` of the type's row."""
    for device in answer.get("NeuronInfo", {}).get("NeuronDevices", ()):
        cores = device["CoreInfo"]["Count"]
        return {"neuron": {"name": device["Name"], "count": device["Count"], "cores": cores}}
    for gpu in answer.get("GpuInfo", {}).get("Gpus", ()):
        model, memory, parted = gpu["Name"], gpu["MemoryInfo"]["SizeInMiB"], gpu.get("GpuPartitionSize", 1.0) < 1
        count = gpu["LogicalGpuCount"] if parted else gpu["Count"]
        if gpu["Manufacturer"].upper() != "NVIDIA":
            raise UsageError(f"no image is built for {name}: its accelerator is {gpu['Manufacturer']} {model}")
        row = gpu_named(facts, model, memory, parted=parted)
        if row is None:
            raise UsageError(
                f"{name}: EC2 says {count} x NVIDIA {model} ({memory} MiB), a GPU that the facts do not know",
                details=["what the checks compare is not in EC2's answer: clocks, power limit, compute capability"],
                hint=f"add its row to the table gpus of site/facts/instance_types.yml: {_STEPS}",
            )
        return {"gpu": {**row, "count": count}}
    raise UsageError(f"no image is built for {name}: EC2 lists neither an NVIDIA GPU nor a Neuron device")


def gpu_named(facts: Facts, model: str, memory_mib: int, *, parted: bool = False) -> Row | None:
    """The row of the GPU that EC2 calls `model` (A100, RTX PRO Server 6000) and whose memory is within an eighth.

    parted: the type has a fraction of it.
    """
    words = _words(model)
    rows = [
        row
        for row in facts.instance_types["gpus"].values()
        if words <= _words(row.get("fraction_of", row["name"])) and ("fraction_of" in row) == parted
    ]
    nearest = min(rows, key=lambda row: abs(row["memory_mib"] - memory_mib), default=None)
    return nearest if nearest and abs(nearest["memory_mib"] - memory_mib) < memory_mib / 8 else None


def _words(name: str) -> set[str]:
    return set(re.split(r"[ -]", name.upper()))


def _type(name: str, family: Row, answer: Described, accelerator: Mapping[str, Any]) -> dict[str, Any]:
    gpus = accelerator.get("gpu", {}).get("count", 0)
    return {
        "family": name.partition(".")[0],
        "vcpus": answer["VCpuInfo"]["DefaultVCpus"],
        "memory_gib": answer["MemoryInfo"]["SizeInMiB"] // 1024,
        "architecture": _architecture(answer),
        "nvswitch": bool(family["nvswitch_generation"]) and gpus == 8,
        "efa_interfaces": answer["NetworkInfo"].get("EfaInfo", {}).get("MaximumEfaInterfaces", 0),
        **accelerator,
    }


def _architecture(answer: Described) -> str:
    return "arm64" if "arm64" in answer["ProcessorInfo"]["SupportedArchitectures"] else "x86_64"


def _family(facts: Facts, name: str, architecture: str, accelerator: Mapping[str, Any]) -> dict[str, Any]:
    kind, device = ("nvidia", accelerator["gpu"]) if "gpu" in accelerator else ("neuron", accelerator["neuron"])
    families = facts.instance_types["families"]
    built = {
        row["family"] for row in facts.instance_types["instance_types"].values() if row["architecture"] == architecture
    }
    alike = [other for other, row in families.items() if row["accelerator"] == kind and "refused" not in row]
    alike = [other for other in alike if other in built] or alike
    nearest = (difflib.get_close_matches(name, alike, n=1, cutoff=0.0) or alike)[0]
    note = f"EC2 does not say whether {name} has NVSwitches, IMEX or GSP rules of its own: taken from {nearest}"
    copied = {key: value for key, value in families[nearest].items() if key not in ("source", "date", "model")}
    model = str(device["name"])
    return copied | {"model": model, "nearest": nearest, "note": note, "unverified": True}
