"""Queries of the facts: a row, what follows from it, and its sources."""

from __future__ import annotations

import datetime
from collections.abc import Iterable

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts.tables import Facts, Row, around, at_least, at_most, branch, matching
from validator.schema import did_you_mean

Answer = dict[str, object]


def about_instance_type(facts: Facts, name: str) -> Answer:
    """An instance type, or a family: accelerators, EFA, and what driver, CUDA and kernel module fit."""
    types, families = facts.instance_types["instance_types"], facts.instance_types["families"]
    if name in families:
        members = [member for member, row in types.items() if row["family"] == name]
        return {"family": name, **_plain(families[name]), "instance_types": members, **_sources(families[name])}
    if name not in types:
        known = [*types, *families]
        raise UsageError(f"no instance type or family {name!r} in the facts{did_you_mean(name, known)}")
    row = types[name]
    family = families[row["family"]]
    answer: Answer = {"instance_type": name, **_plain(row), "efa_generation": family["efa_generation"] or None}
    if "refused" in family:
        answer["not_built_for"] = family["refused"]
    elif "gpu" in row:
        answer |= _gpu_needs(facts, row["gpu"])
    elif "neuron" in row:
        releases = facts.neuron["releases"].items()
        answer["neuron_releases"] = [
            version for version, release in releases if row["neuron"]["name"] in release["devices"]
        ]
    return answer | _sources(row, family, *([row["gpu"]] if "gpu" in row else []))


def stale(facts: Facts, days: int, today: datetime.date) -> list[Answer]:
    """Rows that were read more than `days` days ago, the oldest first: row, date, days, source, verified."""
    aged = [((today - datetime.date.fromisoformat(str(row["date"]))).days, path, row) for path, row in facts.rows()]
    return [
        {
            "row": path,
            "date": str(row["date"]),
            "days": age,
            "source": str(row["source"]),
            "verified": not row.get("unverified", False),
        }
        for age, path, row in sorted(aged, key=lambda entry: (-entry[0], entry[1]))
        if age > days
    ]


OLD_DAYS = 60


def age(dates: Iterable[str], today: datetime.date, days: int = OLD_DAYS) -> str:
    """From when the rows of a plan are, by their dates, and how many were read more than `days` days ago."""
    read = sorted(map(str, dates))
    old = [date for date in read if (today - datetime.date.fromisoformat(date)).days > days]
    text = f"rows of {read[0]} to {read[-1]}" if read else "no rows"
    return f"{text}; {len(old)} of {len(read)} are older than {days} days: gpu-ami facts refresh" if old else text


def _gpu_needs(facts: Facts, gpu: Row) -> Answer:
    architecture = facts.nvidia_drivers["architectures"][gpu["compute_capability"]]
    model = facts.nvidia_drivers["models"].get(gpu["name"], {})
    limits = [facts_row.get("driver", {}) for facts_row in (architecture, model)]
    branches = facts.nvidia_drivers["branches"]
    fitting = [
        name
        for name, row in branches.items()
        if all(at_least(row["releases"][-1], limit.get("first", "0")) for limit in limits)
        and all(at_most(row["releases"][0], limit.get("last", "9999")) for limit in limits)
    ]
    cuda = [
        version
        for version in facts.cuda["releases"]
        if at_least(version, architecture["cuda"].get("first", "0"))
        and at_most(version, architecture["cuda"].get("last", "9999"))
    ]
    divided = facts.tuning["mig"]["gpus"].get(gpu["name"], {"profiles": {}})
    return {
        "driver_branches": fitting,
        "cuda": cuda,
        "kernel_modules": list(architecture["flavours"]),
        "mig_profiles": {profile: most for profile, (_, most) in divided["profiles"].items()},
    }


def about_driver(facts: Facts, asked: str) -> Answer:
    """A driver branch or release: kernel modules, end of support, CUDA, GPU architectures."""
    releases = matching(asked, facts.driver_releases)
    if not releases:
        raise _unknown("driver", asked, list(facts.driver_releases))
    newest = releases[0]
    row = facts.driver_releases[newest]
    native = [cuda for cuda, release in facts.cuda["releases"].items() if at_least(newest, release["minimum_driver"])]
    minor = [
        cuda
        for cuda in facts.cuda["releases"]
        if cuda not in native and at_least(newest, facts.cuda["majors"][branch(cuda)]["floor"])
    ]
    gpus = {
        capability: gpu["name"]
        for capability, gpu in facts.nvidia_drivers["architectures"].items()
        if at_least(newest, gpu["driver"].get("first", "0")) and at_most(newest, gpu["driver"].get("last", "9999"))
    }
    return {
        "driver": asked,
        "branch": branch(newest),
        "releases": sorted(releases, key=lambda release: list(facts.driver_releases).index(release)),
        "kind": row["kind"],
        "end_of_support": row["end_of_support"],
        "kernel_modules": row["flavours"],
        "cuda_made_for": native,
        "cuda_minor_compatible": minor,
        "gpu_architectures": gpus,
        **_sources(row),
    }


def about_cuda(facts: Facts, asked: str) -> Answer:
    """A CUDA toolkit: the driver it needs, and the cuDNN and NCCL that are built for it."""
    releases = matching(asked, facts.cuda["releases"])
    if not releases:
        raise _unknown("CUDA", asked, list(facts.cuda["releases"]))
    version = releases[0]
    row, major = facts.cuda["releases"][version], facts.cuda["majors"][branch(version)]
    built = {
        name: [release for release, library in facts.releases(name).items() if branch(version) in library["cuda"]]
        for name in ("cudnn", "nccl", "dcgm")
    }
    return {
        "cuda": version,
        "minimum_driver": row["minimum_driver"],
        "minimum_driver_minor_compatible": major["floor"],
        "driver_branches_forward_compatible": list(major["forward_from"]),
        **built,
        **_sources(row, major),
    }


def about_efa(facts: Facts, asked: str) -> Answer:
    """What is in an EFA installer."""
    releases = matching(asked, facts.efa["releases"])
    if not releases:
        raise _unknown("EFA installer", asked, list(facts.efa["releases"]))
    row = facts.efa["releases"][releases[0]]
    return {"efa_installer": releases[0], **_plain(row), **_sources(row)}


def about_os(facts: Facts, asked: str) -> Answer:
    """An operating system: support, kernels, Python, repositories, node families."""
    if asked not in facts.operating_systems:
        raise UsageError(f"no operating system {asked!r} in the facts{did_you_mean(asked, facts.operating_systems)}")
    row = facts.operating_systems[asked]
    nodes = [name for name, family in facts.node_families.items() if asked in family["operating_systems"]]
    return {"operating_system": asked, **_plain(row), "node_families": nodes, **_sources(row)}


def _unknown(what: str, asked: str, known: list[str]) -> UsageError:
    near = around(asked, known) if asked[:1].isdigit() else "expected a version, such as " + known[-1]
    return UsageError(f"no {what} {asked!r} in the facts; {near}")


def _plain(row: Row) -> Answer:
    return {key: value for key, value in row.items() if key not in ("source", "date", "unverified")}


def _sources(*rows: Row) -> Answer:
    sources: list[Answer] = []
    for row in rows:
        source = {"source": row["source"], "date": str(row["date"]), "verified": not row.get("unverified")}
        if source not in sources:
            sources.append(source)
    return {"sources": sources}


# Where the key with its underscores as spaces is not what people write.
_LABELS = {
    "cuda": "CUDA",
    "cuda_made_for": "CUDA, made for",
    "cuda_minor_compatible": "CUDA, by minor-version compatibility",
    "cudnn": "cuDNN",
    "dcgm": "DCGM",
    "driver_branches_forward_compatible": "driver branches, by forward compatibility (cuda-compat)",
    "efa_generation": "EFA generation",
    "efa_installer": "EFA installer",
    "efa_interfaces": "EFA interfaces",
    "fraction_of": "fraction of",
    "gpu": "GPU",
    "max_clock_mhz": "highest clocks (MHz)",
    "memory_gib": "memory (GiB)",
    "memory_mib": "memory (MiB)",
    "mig_profiles": "MIG profiles, and how often each fits",
    "pcie_gen": "PCIe generation",
    "pcie_width": "PCIe lanes",
    "pci": "PCI addresses",
    "power_limit_w": "power limit (W)",
    "gpu_architectures": "GPU architectures",
    "minimum_driver_minor_compatible": "minimum driver, by minor-version compatibility",
    "nccl": "NCCL",
    "neuron_releases": "Neuron releases",
    "vcpus": "vCPUs",
    "x86_64": "x86_64",
}


def _label(key: str) -> str:
    return _LABELS.get(key, key.replace("_", " "))


def as_text(answer: Answer, indent: str = "") -> str:
    """One line a value; mappings below their key."""
    lines = []
    for key, value in answer.items():
        if value is None or value in ([], {}):
            continue
        if isinstance(value, dict):
            lines += [f"{indent}{_label(key)}:", as_text(_plain(value), f"{indent}  ")]
        elif key == "sources" and isinstance(value, list):
            for row in value:
                mark = "" if row["verified"] else ", not verified"
                lines.append(f"{indent}source: {row['source']} ({row['date']}{mark})")
        else:
            lines.append(f"{indent}{_label(key)}: {_inline(value)}")
    return "\n".join(lines)


def _inline(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
