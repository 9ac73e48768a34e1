"""Recipe and facts → the plan's document. Deterministic: same files, same document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from gpu_ami.recipes.agent import agent_config, gpu_config
from gpu_ami.recipes.citations import Sources
from gpu_ami.recipes.facts import Facts, Row
from gpu_ami.recipes.layers import Recipe, raise_mistakes
from gpu_ami.recipes.notes import remark
from gpu_ami.recipes.packages import agent_section, sections
from gpu_ami.recipes.resolve_context import Conflict, World
from gpu_ami.recipes.rules_image import python_for
from gpu_ami.recipes.site import digest, files, site_roles
from gpu_ami.recipes.solver import solve
from gpu_ami.recipes.system_sections import kernel_section, lustre_section, node_section, tuning_section
from validator.plan_document import (
    CloudWatchAgent,
    Components,
    Gpu,
    InstanceType,
    Node,
    OperatingSystem,
    ResolvedPlan,
    SourceAmi,
    Telemetry,
)

_GPU_KEYS = (
    "vendor", "name", "architecture", "compute_capability", "memory_mib", "power_limit_w", "max_clock_mhz",
    "pcie_gen", "pcie_width", "pci",
)  # fmt: skip


def resolve(recipe: Recipe, facts: Facts) -> ResolvedPlan:
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
    kernel = kernel_section(system, world.kernel, values["architecture"])
    components: Components = {
        **node_section(world),
        **sections(world, solution.versions, sources),
        **lustre_section(world, sources),
        **tuning_section(world, sources),
    }
    telemetry = _telemetry(world)
    agent: CloudWatchAgent = {
        **agent_section(world, sources),
        "config": agent_config(telemetry, values["event_parser"], None),
        "gpu_config": gpu_config(telemetry, None) if telemetry["measurements"] else {},
    }
    sources.add(f"metric set {telemetry['profile']}", facts.telemetry[telemetry["profile"]])
    remark(world, solution.versions, sources)
    # Sections of the site's roles: their grammar is their argument_specs.
    own: dict[str, object] = {role: values[role] for role in site_roles(recipe.site) if role in values}
    if recipe.site and any(files(recipe.site)):
        own["site"] = {"digest": digest(recipe.site)}
    document: ResolvedPlan = {
        "schema": "gpu-ami/plan/1",
        "image": recipe.name,
        "description": values.get("description", ""),
        "flag": values["flag"],
        "recipe": {"file": recipe.file.name, "sha256": recipe.sha256},
        "os": _operating_system(world),
        "architecture": values["architecture"],
        "node": _node(world),
        "source_ami": source_ami(world),
        "build": values["build"],
        "instance_types": types,
        "roles": [role for role in values["roles"] if _has_work(role, {"kernel": kernel, **components, **own})],
        "kernel": kernel,
        **components,
        "cloudwatch_agent": agent,
        "event_parser": values["event_parser"],
        "hygiene": {},
        "telemetry": telemetry,
        "sources": sources.rows,
        "notes": sources.notes,
    }
    return cast(ResolvedPlan, {**document, **own})


def _operating_system(world: World) -> OperatingSystem:
    row = world.os
    return {
        "id": row["id"],
        "version": row["version"],
        "codename": row["codename"],
        "family": row["family"],
        "ssh_user": row["ssh_user"],
        "python": python_for(world) or "",
        "end_of_life": row["end_of_life"],
    }


def _node(world: World) -> Node:
    node: Node = {"family": world.node_name}
    if world.node_version:
        node["version"] = world.node_version
    return node


def _line(recipe: Recipe, conflict: Conflict) -> str:
    nearest = f"; nearest: {conflict.nearest}" if conflict.nearest else ""
    return f"{recipe.origin(conflict.path)}: {conflict.path}: {conflict.text} [{conflict.source}]{nearest}"


def _has_work(role: str, components: Mapping[str, object]) -> bool:
    """A component's role runs if the plan has the component and the base AMI does not provide it."""
    if role in ("cloudwatch_agent", "event_parser", "hygiene"):
        return True
    section = components.get(role)
    return isinstance(section, Mapping) and "provided_by" not in section


def source_ami(world: World) -> SourceAmi:
    """How the source AMI is found: an id, or owner and name filter, with an SSM public parameter where there is one."""
    asked = world.values.get("source_ami")
    if asked:
        return cast(SourceAmi, dict(asked))
    architecture = str(world.values["architecture"])
    template: Row = world.node.get("source_ami", {}).get(world.os_name) or world.os["source_ami"][architecture]
    values = {
        "version": world.node_version or "",
        "kernel": world.kernel,
        "arch": architecture,
        "ssm_arch": "" if architecture == "x86_64" else f"/{architecture}",
        "dlami_arch": "" if architecture == "x86_64" else "ARM64 ",
    }
    return cast(SourceAmi, {key: str(text).format(**values) for key, text in template.items()})


def _instance_type(world: World, name: str, sources: Sources) -> InstanceType:
    row = world.instance_types[name]
    gpu = row.get("gpu")
    sources.add(f"instance type {name}", row)
    entry: InstanceType = {
        "name": name,
        "gpu_count": gpu["count"] if gpu else 0,
        "nvswitch": row["nvswitch"],
        "efa_interfaces": row["efa_interfaces"],
        "vcpus": row["vcpus"],
        "memory_gib": row["memory_gib"],
    }
    if gpu:
        entry["gpu"] = cast(Gpu, {key: gpu[key] for key in _GPU_KEYS if key in gpu})
        sources.add(f"GPU {gpu['name']}", gpu)
    if "neuron" in row:
        entry["neuron"] = row["neuron"]
    return entry


def _telemetry(world: World) -> Telemetry:
    asked = world.values["telemetry"]
    measurements = asked.get("measurements") or world.facts.telemetry[asked["profile"]]["measurements"]
    absent = _absent(world, measurements)
    telemetry: Telemetry = {
        "profile": asked["profile"],
        "interval_s": asked["interval_s"],
        "namespace": asked["namespace"],
        "measurements": list(measurements),
        "raw_log_group": asked["raw_log_group"],
        "json_log_group": asked["json_log_group"],
        "log_stream": asked["log_stream"],
    }
    if absent:
        telemetry["absent"] = absent
    if "retention_days" in asked:
        telemetry["retention_days"] = asked["retention_days"]
    return telemetry


def _absent(world: World, measurements: list[str]) -> dict[str, list[str]]:
    """Instance type → measurements that its GPUs never have, so that nobody waits for them."""
    facts = world.facts.gpudirect
    by_type: dict[str, list[str]] = {}
    for gpu in world.gpus:
        bare = gpu.row["name"] in facts["encoder"]["without"]
        never = [name for name in measurements if name == "fan_speed" or (bare and name.startswith("encoder_"))]
        if never:
            by_type |= dict.fromkeys(gpu.instance_types, never)
    divided = world.facts.tuning["mig"]["absent"]["measurements"]
    for name in world.section("tuning").get("mig", {}):
        known = by_type.get(name, [])
        absent = [measurement for measurement in measurements if measurement in divided and measurement not in known]
        if absent:
            by_type[name] = [*known, *absent]
    return by_type
