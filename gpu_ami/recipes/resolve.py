"""Recipe and facts → the plan's document. Deterministic: same files, same document."""

from __future__ import annotations

from typing import Any

from gpu_ami.recipes.agent import agent_config, gpu_config
from gpu_ami.recipes.facts import Facts, Row
from gpu_ami.recipes.layers import Recipe, raise_mistakes
from gpu_ami.recipes.packages import agent_section, sections
from gpu_ami.recipes.remarks import remark
from gpu_ami.recipes.rules_image import python_for
from gpu_ami.recipes.solve import solve
from gpu_ami.recipes.sources import Sources
from gpu_ami.recipes.surroundings import kernel_section, lustre_section, node_section, tuning_section
from gpu_ami.recipes.world import Conflict, World

_GPU_KEYS = (
    "vendor", "name", "architecture", "compute_capability", "memory_mib", "power_limit_w", "max_clock_mhz",
    "pcie_gen", "pcie_width", "pci",
)  # fmt: skip


def resolve(recipe: Recipe, facts: Facts) -> dict[str, Any]:
    """The plan's document, without digest and as it is carried out on AWS itself. UsageError: all conflicts at once."""
    world = World(recipe.values, facts)
    solution = solve(world)
    if solution.conflicts:
        raise_mistakes(recipe.file, [_line(recipe, conflict) for conflict in solution.conflicts])
    sources = Sources()
    values, system = recipe.values, world.os
    sources.add(f"operating system {world.os_name}", system)
    sources.add(f"node family {world.node_name}", world.node)
    if world.node_release:
        sources.add(f"{world.node_name} {world.node_version}", world.node_release)
    types = [_instance_type(world, name, sources) for name in values["instance_types"]]
    components = {
        "kernel": kernel_section(system, world.kernel, values["architecture"]),
        **node_section(world),
        **sections(world, solution.versions, sources),
        **lustre_section(world, sources),
        **tuning_section(world, sources),
    }
    telemetry = _telemetry(world)
    agent = agent_section(world, sources) | {
        "config": agent_config(telemetry, values["event_parser"], None),
        "gpu_config": gpu_config(telemetry, None) if telemetry["measurements"] else {},
    }
    sources.add(f"metric set {telemetry['profile']}", facts.telemetry[telemetry["profile"]])
    remark(world, solution.versions, sources)
    return {
        "schema": "gpu-ami/plan/1",
        "image": recipe.name,
        "description": values.get("description", ""),
        "flag": values["flag"],
        "recipe": {"file": recipe.file.name, "sha256": recipe.sha256},
        "os": {key: system[key] for key in ("id", "version", "codename", "family", "ssh_user")}
        | {"python": python_for(world), "end_of_life": system["end_of_life"]},
        "architecture": values["architecture"],
        "node": {"family": world.node_name} | ({"version": world.node_version} if world.node_version else {}),
        "source_ami": source_ami(world),
        "build": values["build"],
        "instance_types": types,
        "roles": [role for role in values["roles"] if _has_work(role, components)],
        **components,
        "cloudwatch_agent": agent,
        "event_parser": values["event_parser"],
        "hygiene": {},
        "telemetry": telemetry,
        "sources": sources.rows,
        "notes": sources.notes,
    }


def _line(recipe: Recipe, conflict: Conflict) -> str:
    nearest = f"; nearest: {conflict.nearest}" if conflict.nearest else ""
    return f"{recipe.origin(conflict.path)}: {conflict.path}: {conflict.text} [{conflict.source}]{nearest}"


def _has_work(role: str, components: dict[str, Any]) -> bool:
    """A component's role runs where the plan has the component and the base AMI has not."""
    if role in ("cloudwatch_agent", "event_parser", "hygiene"):
        return True
    return role in components and "provided_by" not in components[role]


def source_ami(world: World) -> dict[str, str]:
    """How the source AMI is found: an id, or owner and name filter, with an SSM public parameter where there is one."""
    asked = world.values.get("source_ami")
    if asked:
        return dict(asked)
    architecture = str(world.values["architecture"])
    template: Row = world.node.get("source_ami", {}).get(world.os_name) or world.os["source_ami"][architecture]
    values = {
        "version": world.node_version or "",
        "kernel": world.kernel,
        "arch": architecture,
        "ssm_arch": "" if architecture == "x86_64" else f"/{architecture}",
        "dlami_arch": "" if architecture == "x86_64" else "ARM64 ",
    }
    return {key: str(text).format(**values) for key, text in template.items()}


def _instance_type(world: World, name: str, sources: Sources) -> dict[str, Any]:
    row = world.instance_types[name]
    gpu = row.get("gpu")
    sources.add(f"instance type {name}", row)
    entry = {
        "name": name,
        "gpu_count": gpu["count"] if gpu else 0,
        **{key: row[key] for key in ("nvswitch", "efa_interfaces", "vcpus", "memory_gib")},
    }
    if gpu:
        entry["gpu"] = {key: gpu[key] for key in _GPU_KEYS if key in gpu}
        sources.add(f"GPU {gpu['name']}", gpu)
    if "neuron" in row:
        entry["neuron"] = row["neuron"]
    return entry


def _telemetry(world: World) -> dict[str, Any]:
    asked = world.values["telemetry"]
    measurements = asked.get("measurements") or world.facts.telemetry[asked["profile"]]["measurements"]
    absent = _absent(world, measurements)
    return {
        "profile": asked["profile"],
        "interval_s": asked["interval_s"],
        "namespace": asked["namespace"],
        "measurements": list(measurements),
        **({"absent": absent} if absent else {}),
        "raw_log_group": asked["raw_log_group"],
        "json_log_group": asked["json_log_group"],
        "log_stream": asked["log_stream"],
        **({"retention_days": asked["retention_days"]} if "retention_days" in asked else {}),
    }


def _absent(world: World, measurements: list[str]) -> dict[str, list[str]]:
    """Instance type → measurements that its GPUs never have, so that nobody waits for them."""
    facts = world.facts.gpudirect
    found: dict[str, list[str]] = {}
    for gpu in world.gpus:
        bare = gpu.row["name"] in facts["encoder"]["without"]
        never = [one for one in measurements if one == "fan_speed" or (bare and one.startswith("encoder_"))]
        if never:
            found |= dict.fromkeys(gpu.instance_types, never)
    return found
