"""What a plan says beside its components: the kernel's packages, the node family, the Lustre client, the tuning."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpu_ami.recipes.facts import Row
from gpu_ami.recipes.sources import Sources
from gpu_ami.recipes.world import Assignment, Conflict, World

_DEB_ARCHITECTURES = {"x86_64": "amd64", "arm64": "arm64"}

Section = dict[str, Any]


def kernel_section(system: Row, series: str, architecture: str) -> Section:
    """Packages of a kernel series on an operating system. `headers` may hold {release}: what `uname -r` says."""
    rows = system["kernel_packages"]
    row, deb = rows.get(series) or rows["default"], _DEB_ARCHITECTURES[architecture]
    return {
        "version": series,
        "package": row["package"].replace("{deb}", deb),
        "headers": row["headers"],
        "hold": [name.replace("{deb}", deb) for name in row["hold"]],
    }


def node_section(world: World) -> dict[str, Section]:
    """The section of the node family's own role; a plain EC2 instance has none."""
    if world.node_name == "ec2":
        return {}
    section: Section = {"version": world.node_version or ""}
    if world.node_name == "ecs":  # its agent is told what there is to hand out
        section["accelerator"] = next(iter(sorted(world.accelerators)), "none")
    return {f"node_{world.node_name}": section}


def lustre_section(world: World, sources: Sources) -> dict[str, Section]:
    """The FSx for Lustre client, where the recipe asks for it."""
    row = world.facts.lustre["clients"].get(world.os_name)
    if "lustre" not in world.values or row is None:
        return {}
    sources.add(f"Lustre client of {world.os_name}", row)
    section: Section = {"package": row["package"]}
    if "repository" in row:
        section["repository"] = {
            **row["repository"],
            "suite": world.os["codename"],
            "key_fingerprint": world.section("lustre")["key_fingerprint"].upper(),
        }
    return {"lustre": section}


def lustre_is_there(world: World, _chosen: Assignment) -> Iterator[Conflict]:
    """AWS builds the client for some systems, and its key for Ubuntu is the recipe's to trust."""
    if "lustre" not in world.values:
        return
    row = world.facts.lustre["clients"].get(world.os_name)
    source = world.facts.lustre["source"]
    if row is None:
        able = ", ".join(world.facts.lustre["clients"])
        yield Conflict("lustre", f"no Lustre client is built for {world.os_name}", source, nearest=f"os {able}")
    elif "repository" in row and "key_fingerprint" not in world.section("lustre"):
        text = (
            f"the fingerprint of {row['repository']['key_url']} is not established, and nothing is trusted without one"
        )
        yield Conflict("lustre.key_fingerprint", text, source, nearest="lustre.key_fingerprint as AWS tells it to you")


def tuning_section(world: World, sources: Sources) -> dict[str, Section]:
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
            sources.note(f"not established: the highest application clocks of {name}; it keeps its own")
    sources.add("limit of locked memory", facts["memlock"])
    sources.add("network settings", facts["sysctl"])
    return {
        "tuning": {
            "memlock": facts["memlock"]["value"],
            "sysctl": dict(facts["sysctl"]["values"]) | dict(asked.get("sysctl", {})),
            "clocks": {name: list(row["mhz"]) for name, row in known.items()},
            "mig": dict(asked.get("mig", {})),
        }
    }


def mig_is_possible(world: World, _chosen: Assignment) -> Iterator[Conflict]:
    """GPU instances exist on A100, H100 and their successors alone, and only for instance types of the recipe."""
    able = ("8.0", "9.0", "10.0", "10.3", "12.0")
    for name in world.section("tuning").get("mig", {}):
        path = f"tuning.mig.{name}"
        if name not in world.instance_types:
            text = f"{name} is not among the recipe's instance types"
            yield Conflict(path, text, "a profile is applied by instance type", nearest="leave it out")
            continue
        gpu = world.instance_types[name].get("gpu")
        if not gpu or gpu.get("compute_capability") not in able:
            text = f"{gpu['name'] if gpu else 'no GPU'} ({name}) cannot be divided into MIG instances"
            source = "https://docs.nvidia.com/datacenter/tesla/mig-user-guide/ (supported GPUs)"
            yield Conflict(path, text, source, nearest="leave it out")


SURROUNDING_RULES = (lustre_is_there, mig_is_possible)
