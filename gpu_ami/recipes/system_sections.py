"""The plan's sections of kernel, node family, Lustre client and tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import cast

from gpu_ami.recipes.architectures import ARCHITECTURES
from gpu_ami.recipes.citations import Sources
from gpu_ami.recipes.facts import Row
from gpu_ami.recipes.resolve_context import Assignment, Conflict, World
from validator.plan_document import Components, Kernel, Lustre, NodeRole, Tuning


def kernel_section(system: Row, series: str, architecture: str) -> Kernel:
    """Packages of a kernel series on an operating system. `headers` may contain {release}: the output of `uname -r`."""
    rows = system["kernel_packages"]
    row, deb = rows.get(series) or rows["default"], ARCHITECTURES[architecture].deb
    return {
        "version": series,
        "package": row["package"].replace("{deb}", deb),
        "headers": row["headers"],
        "hold": [name.replace("{deb}", deb) for name in row["hold"]],
    }


def node_section(world: World) -> Components:
    """The section of the node family's own role; a plain EC2 instance has none."""
    if world.node_name == "ec2":
        return {}
    section: NodeRole = {"version": world.node_version or ""}
    if world.node_name == "ecs":  # for the agent, which schedules tasks on it
        section["accelerator"] = next(iter(sorted(world.accelerators)), "none")
    return cast(Components, {f"node_{world.node_name}": section})


def lustre_section(world: World, sources: Sources) -> Components:
    """The FSx for Lustre client, where the recipe asks for it."""
    row = world.facts.lustre["clients"].get(world.os_name)
    if "lustre" not in world.values or row is None:
        return {}
    sources.add(f"Lustre client of {world.os_name}", row)
    if world.kernel not in row.get("kernels", [world.kernel]):
        sources.note(f"not verified: a module of {world.os_name}'s Lustre client for kernel {world.kernel}")
    section: Lustre = {"package": row["package"]}
    if "repository" in row:
        section["repository"] = {
            "url": row["repository"]["url"],
            "components": row["repository"]["components"],
            "key_url": row["repository"]["key_url"],
            "suite": world.os["codename"],
            "key_fingerprint": world.section("lustre")["key_fingerprint"].upper(),
        }
    return {"lustre": section}


def lustre_is_there(world: World, _chosen: Assignment) -> Iterator[Conflict]:
    """AWS builds the client for some systems; the recipe must name the fingerprint of its key for Ubuntu."""
    if "lustre" not in world.values:
        return
    row = world.facts.lustre["clients"].get(world.os_name)
    source = world.facts.lustre["source"]
    if row is None:
        able = ", ".join(world.facts.lustre["clients"])
        yield Conflict("lustre", f"no Lustre client is built for {world.os_name}", source, nearest=f"os {able}")
    elif "repository" in row and "key_fingerprint" not in world.section("lustre"):
        key_url = row["repository"]["key_url"]
        text = f"the fingerprint of {key_url} is not in the facts, and a key is trusted by its fingerprint only"
        yield Conflict("lustre.key_fingerprint", text, source, nearest="lustre.key_fingerprint as AWS publishes it")


def tuning_section(world: World, sources: Sources) -> Components:
    """Limits, sysctl, clocks and MIG, where the recipe asks for them."""
    if "tuning" not in world.values:
        return {}
    asked, facts = world.section("tuning"), world.facts.tuning
    names = [gpu.row["name"] for gpu in world.gpus] if asked.get("clocks", True) else []
    known = {name: facts["clocks"][name] for name in names if name in facts["clocks"]}
    for name, row in known.items():
        sources.add(f"clocks of {name}", row)
    for name in names:
        if name not in known:
            sources.note(f"not established: the highest application clocks of {name}; they are not set")
    settings = dict(asked.get("sysctl", {}))
    if asked.get("network", True):
        sources.add("network settings", facts["sysctl"])
        settings = dict(facts["sysctl"]["values"]) | settings
    for name in asked.get("mig", {}):
        gpu = world.instance_types[name]["gpu"]["name"]
        sources.add(f"MIG profiles of {gpu}", facts["mig"]["gpus"][gpu])
    section: Tuning = {
        "sysctl": settings,
        "clocks": {name: list(row["mhz"]) for name, row in known.items()},
        "mig": dict(asked.get("mig", {})),
    }
    if asked.get("memlock", True):
        sources.add("limit of locked memory", facts["memlock"])
        section["memlock"] = facts["memlock"]["value"]
    return {"tuning": section}


def mig_is_possible(world: World, _chosen: Assignment) -> Iterator[Conflict]:
    """The GPUs of each type must support the MIG profiles of the recipe."""
    facts = world.facts.tuning["mig"]
    for name, asked in world.section("tuning").get("mig", {}).items():
        path = f"tuning.mig.{name}"
        if name not in world.instance_types:
            text = f"{name} is not among the recipe's instance types"
            yield Conflict(path, text, "a profile is applied by instance type", nearest="leave it out")
            continue
        gpu = world.instance_types[name].get("gpu", {}).get("name")
        row = facts["gpus"].get(gpu)
        if row is None:
            text = f"{gpu or 'no GPU'} ({name}) cannot be divided into MIG instances"
            yield Conflict(path, text, facts["sources"]["guide"]["source"], nearest="leave it out")
            continue
        problem = _mig_problem(row, asked.split(","))
        if problem:
            fitting = ", ".join(f"{most} x {profile}" for profile, (_, most) in row["profiles"].items())
            yield Conflict(
                path, f"{gpu} ({name}) {problem}", row["source"], nearest=f"one of {fitting}, or a mix of them"
            )


def _mig_problem(row: Row, profiles: list[str]) -> str:
    """Why a GPU cannot be divided into these profiles; empty if it can. Each uses compute and memory slices."""
    known = row["profiles"]
    unknown = sorted({name for name in profiles if name not in known})
    if unknown:
        return f"has no MIG profile {' or '.join(unknown)}"
    for name in sorted(set(profiles)):
        if profiles.count(name) > known[name][1]:
            return f"takes at most {known[name][1]} x {name}, not {profiles.count(name)}"
    compute = sum(int(name.partition("g.")[0]) for name in profiles)
    memory = sum(known[name][0] for name in profiles)
    if compute > row["slices"][0] or memory > row["slices"][1]:
        needed = f"{compute} compute and {memory} memory slices"
        return f"cannot hold {','.join(profiles)}: needs {needed}, has {row['slices'][0]} and {row['slices'][1]}"
    return ""


SURROUNDING_RULES = (lustre_is_there, mig_is_possible)
