"""Answers to questions about the facts: one row, what follows from it, and where it stands."""

from __future__ import annotations

from typing import Any

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts import Facts, Row, did_you_mean
from gpu_ami.recipes.versions import at_least, at_most, branch, matching

Answer = dict[str, Any]


def about_instance_type(facts: Facts, name: str) -> Answer:
    """An instance type, or a family: accelerators, EFA, and what driver, CUDA and kernel module fit."""
    types, families = facts.instance_types["instance_types"], facts.instance_types["families"]
    if name in families:
        members = [one for one, row in types.items() if row["family"] == name]
        return {"family": name, **_plain(families[name]), "instance types": members, **_sources(families[name])}
    if name not in types:
        known = [*types, *families]
        raise UsageError(f"no instance type or family {name!r} in the facts{did_you_mean(name, known)}")
    row = types[name]
    family = families[row["family"]]
    answer: Answer = {"instance type": name, **_plain(row), "EFA generation": family["efa_generation"] or None}
    if "refused" in family:
        answer["not built for"] = family["refused"]
    elif "gpu" in row:
        answer |= _gpu_needs(facts, row["gpu"])
    elif "neuron" in row:
        releases = facts.neuron["releases"].items()
        answer["Neuron"] = [version for version, one in releases if row["neuron"]["name"] in one["devices"]]
    return answer | _sources(row, family, *([row["gpu"]] if "gpu" in row else []))


def _gpu_needs(facts: Facts, gpu: Row) -> Answer:
    architecture = facts.nvidia_drivers["architectures"][gpu["compute_capability"]]
    model = facts.nvidia_drivers["models"].get(gpu["name"], {})
    limits = [one.get("driver", {}) for one in (architecture, model)]
    branches = facts.nvidia_drivers["branches"]
    fitting = [
        name
        for name, row in branches.items()
        if all(at_least(row["releases"][-1], one.get("first", "0")) for one in limits)
        and all(at_most(row["releases"][0], one.get("last", "9999")) for one in limits)
    ]
    cuda = [
        version
        for version in facts.cuda["releases"]
        if at_least(version, architecture["cuda"].get("first", "0"))
        and at_most(version, architecture["cuda"].get("last", "9999"))
    ]
    return {
        "driver branches": fitting,
        "CUDA": f"{cuda[0]} to {cuda[-1]}",
        "kernel modules": list(architecture["flavours"]),
    }


def about_driver(facts: Facts, asked: str) -> Answer:
    """A driver branch or release: kernel modules, end of support, CUDA, GPU architectures."""
    releases = matching(asked, facts.driver_releases)
    if not releases:
        known = [*facts.nvidia_drivers["branches"], *facts.driver_releases]
        raise UsageError(f"no driver {asked!r} in the facts{did_you_mean(asked, known)}")
    newest = releases[0]
    row = facts.driver_releases[newest]
    native = [one for one, cuda in facts.cuda["releases"].items() if at_least(newest, cuda["minimum_driver"])]
    minor = [
        one
        for one in facts.cuda["releases"]
        if one not in native and at_least(newest, facts.cuda["majors"][branch(one)]["floor"])
    ]
    gpus = [
        f"{one['name']} ({capability})"
        for capability, one in facts.nvidia_drivers["architectures"].items()
        if at_least(newest, one["driver"].get("first", "0")) and at_most(newest, one["driver"].get("last", "9999"))
    ]
    return {
        "driver": asked,
        "branch": branch(newest),
        "releases": sorted(releases, key=lambda one: list(facts.driver_releases).index(one)),
        "kind": row["kind"],
        "end of support": row["end_of_support"],
        "kernel modules": row["flavours"],
        "CUDA, made for": native,
        "CUDA, by minor-version compatibility": minor,
        "GPU architectures": gpus,
        **_sources(row),
    }


def about_cuda(facts: Facts, asked: str) -> Answer:
    """A CUDA toolkit: the driver it needs, and the cuDNN and NCCL that are built for it."""
    found = matching(asked, facts.cuda["releases"])
    if not found:
        raise UsageError(f"no CUDA {asked!r} in the facts{did_you_mean(asked, facts.cuda['releases'])}")
    version = found[0]
    row, major = facts.cuda["releases"][version], facts.cuda["majors"][branch(version)]
    built = {
        label: [one for one, library in facts.releases(name).items() if branch(version) in library["cuda"]]
        for name, label in (("cudnn", "cuDNN"), ("nccl", "NCCL"), ("dcgm", "DCGM"))
    }
    return {
        "CUDA": version,
        "made for driver": f">= {row['minimum_driver']}",
        "by minor-version compatibility": f">= {major['floor']}",
        "by forward compatibility (cuda-compat)": [f"R{one}" for one in major["forward_from"]],
        **built,
        **_sources(row, major),
    }


def about_efa(facts: Facts, asked: str) -> Answer:
    """What is in an EFA installer."""
    found = matching(asked, facts.efa["releases"])
    if not found:
        raise UsageError(f"no EFA installer {asked!r} in the facts{did_you_mean(asked, facts.efa['releases'])}")
    row = facts.efa["releases"][found[0]]
    return {"EFA installer": found[0], **_plain(row), **_sources(row)}


def about_os(facts: Facts, asked: str) -> Answer:
    """An operating system: support, kernels, Python, repositories, node families."""
    if asked not in facts.operating_systems:
        raise UsageError(f"no operating system {asked!r} in the facts{did_you_mean(asked, facts.operating_systems)}")
    row = facts.operating_systems[asked]
    nodes = [name for name, family in facts.node_families.items() if asked in family["operating_systems"]]
    return {"operating system": asked, **_plain(row), "node families": nodes, **_sources(row)}


def _plain(row: Row) -> Answer:
    return {key.replace("_", " "): value for key, value in row.items() if key not in ("source", "date", "unverified")}


def _sources(*rows: Row) -> Answer:
    found = []
    for row in rows:
        mark = ", not verified" if row.get("unverified") else ""
        line = f"{row['source']} ({row['date']}{mark})"
        if line not in found:
            found.append(line)
    return {"sources": found}


def as_text(answer: Answer, indent: str = "") -> str:
    """One line a value; mappings below their key."""
    lines = []
    for key, value in answer.items():
        if value is None or value == []:
            continue
        if isinstance(value, dict):
            below = {name: one for name, one in value.items() if name not in ("source", "date", "unverified")}
            lines += [f"{indent}{key}:", as_text(below, f"{indent}  ")]
        elif key == "sources":
            lines += [f"{indent}source: {one}" for one in value]
        else:
            lines.append(f"{indent}{key}: {_inline(value)}")
    return "\n".join(lines)


def _inline(value: object) -> str:
    if isinstance(value, bool):
        return "yes" if value else "no"
    return ", ".join(str(item) for item in value) if isinstance(value, list) else str(value)
