"""Recipe and facts → the plan's document. Deterministic: same files, same document."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from gpu_ami.files import lines_of, located
from gpu_ami.recipes.agent import agent_config, gpu_config, publishers
from gpu_ami.recipes.components import components
from gpu_ami.recipes.facts import ARCHITECTURES, UNVERIFIED, Facts, Row, Sources, judged, measured, with_unknown
from gpu_ami.recipes.layers import Recipe, raise_mistakes
from gpu_ami.recipes.notes import remark
from gpu_ami.recipes.rules import Assignment, Component, Conflict, ResolveContext, python_for
from gpu_ami.recipes.site import components_of, digest, files
from gpu_ami.recipes.solver import with_kernel
from validator import measurement
from validator.measurement import Lacks
from validator.plan_document import (
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
    "pcie_gen", "pcie_width", "pci", "fraction_of",
)  # fmt: skip


def resolve(recipe: Recipe, facts: Facts) -> ResolvedPlan:
    """The plan's document, without digest and as it is carried out on AWS itself. UsageError: all conflicts at once."""
    with judged(facts):
        return _resolve(recipe, facts)


def _resolve(recipe: Recipe, facts: Facts) -> ResolvedPlan:
    facts, unknown = with_unknown(facts, recipe.values)
    context = ResolveContext(recipe.values, facts, components_of(recipe.site))
    context, solution = with_kernel(context)
    if solution.conflicts:
        raise_mistakes(recipe.file, [_line(recipe, conflict) for conflict in solution.conflicts])
    sources = Sources()
    for one in unknown:
        sources.note(one.note)
    values, system = recipe.values, context.os
    sources.add(f"operating system {context.os_name}", system)
    sources.add(f"node family {context.node_name}", context.node)
    if context.node_release:
        sources.add(f"{context.node_name} {context.node_version}", context.node_release)
    if context.node_system:
        sources.add(f"{context.node_name} on {context.os_name}", context.node_system)
        sources.note(context.node_system["note"])
    if context.variant:
        sources.add(context.base_ami, context.variant)
    types = [_instance_type(context, name, sources) for name in values["instance_types"]]
    written = sections(context, solution.versions, sources)
    required = sections(context, solution.versions, sources, required=True)
    of_site = {name: section for name, section in written.items() if name not in components()}
    optional = {name: section for name, section in written.items() if name not in of_site}
    telemetry = _telemetry(context)
    own_logs = publishers(optional).values()
    agent = {
        **required["cloudwatch_agent"],
        "config": agent_config(telemetry, values["event_parser"], None, *own_logs),
        "gpu_config": gpu_config(telemetry, None) if telemetry["measurements"] else {},
    }
    sources.add(f"metric set {telemetry['profile']}", facts.telemetry[telemetry["profile"]])
    remark(context, solution.versions, sources)
    site = {"site": {"digest": digest(recipe.site)}} if recipe.site and any(files(recipe.site)) else {}
    accepted = values.get("accept", ())
    unverified = {one.component: one.version for one in unknown if f"{UNVERIFIED}{one.component}" not in accepted}
    document = {
        "schema": "gpu-ami/plan/1",
        "image": recipe.name,
        "description": values.get("description", ""),
        "flag": values["flag"],
        "recipe": {"file": recipe.file.name, "sha256": recipe.sha256},
        "os": _operating_system(context),
        "architecture": values["architecture"],
        "node": _node(context),
        "source_ami": source_ami(context),
        "build": values["build"],
        "instance_types": types,
        "roles": [role for role in values["roles"] if _has_work(role, required | written)],
        "kernel": required["kernel"],
        **optional,
        **{name: section for name, section in required.items() if name != "kernel"},
        "cloudwatch_agent": agent,
        "telemetry": telemetry,
        "sources": sources.rows,
        "notes": sources.notes,
        **({"boot_seconds": values["boot_seconds"]} if "boot_seconds" in values else {}),
        **({"unverified": unverified} if unverified else {}),
        **of_site,
        **site,
    }
    return cast(ResolvedPlan, document)


def sections(
    context: ResolveContext, versions: Assignment, sources: Sources, *, required: bool = False
) -> dict[str, Mapping[str, object]]:
    """Component → its section. required: of the components that are in every plan, else of the others that it has."""
    asked = [one for one in context.components.values() if one.is_in_every_plan == required]
    written = {one.name: _section(one, context, versions, sources) for one in asked}
    return {name: section for name, section in written.items() if section is not None}


def _section(
    component: Component, context: ResolveContext, versions: Assignment, sources: Sources
) -> Mapping[str, object] | None:
    """Of a component that the base AMI has, its version, and what the component says of it."""
    name = component.name
    if component.is_chosen:
        if name not in versions:
            return None
        sources.add(f"{component.label} {versions[name]}", context.facts.releases(name)[versions[name]])
        if name in context.provided:
            of_base = component.of_base(context, sources) if component.of_base else {}
            settings = context.variant.get("settings", {}).get(name, {})
            return {"version": context.provided[name], "provided_by": context.base_ami, **settings, **of_base}
    return component.written(context, versions, sources)


def _operating_system(context: ResolveContext) -> OperatingSystem:
    row = context.os
    system: OperatingSystem = {
        "id": row["id"],
        "version": row["version"],
        "codename": row["codename"],
        "family": row["family"],
        "ssh_user": row["ssh_user"],
        "python": python_for(context) or "",
        "end_of_life": row["end_of_life"],
    }
    if "root_device" in row:
        system["root_device"] = row["root_device"]
    return system


def _node(context: ResolveContext) -> Node:
    node: Node = {"family": context.node_name}
    if context.node_version:
        node["version"] = context.node_version
    if context.node_variant:
        node["variant"] = context.node_variant
    return node


def _line(recipe: Recipe, conflict: Conflict) -> str:
    nearest = f"; nearest: {conflict.nearest}" if conflict.nearest else ""
    origin = recipe.origin(conflict.path)
    where = located(origin, lines_of(recipe.file), conflict.path) if origin == recipe.file.name else origin
    return f"{where}: {conflict.path}: {conflict.text} [{conflict.source}]{nearest}"


def _has_work(role: str, components: Mapping[str, Mapping[str, object]]) -> bool:
    """A component's role runs if the plan has the component and the base AMI does not provide it."""
    return role in components and "provided_by" not in components[role]


def source_ami(context: ResolveContext) -> SourceAmi:
    """How the source AMI is found: an id, or owner and name filter, with an SSM public parameter where there is one."""
    asked = context.values.get("source_ami")
    if asked:
        return cast(SourceAmi, dict(asked))
    architecture = str(context.values["architecture"])
    of_base: Row = (context.variant or context.node).get("source_ami", {})
    template: Row = of_base.get(context.os_name) or context.os["source_ami"][architecture]
    values = {
        "version": context.node_version or "",
        "release": context.variant.get("release", ""),
        "kernel": context.kernel,
        "arch": architecture,
        "deb": ARCHITECTURES[architecture].deb,
        "ssm_arch": "" if architecture == "x86_64" else f"/{architecture}",
        "dlami_arch": "" if architecture == "x86_64" else "ARM64 ",
    }
    return cast(SourceAmi, {key: str(text).format(**values) for key, text in template.items()})


def _instance_type(context: ResolveContext, name: str, sources: Sources) -> InstanceType:
    row = context.instance_types[name]
    sources.add(f"instance type {name}", row)
    if "gpu" in row:
        sources.add(f"GPU {row['gpu']['name']}", row["gpu"])
    return instance_type_row(context.facts, name)


def instance_type_row(facts: Facts, name: str) -> InstanceType:
    """What a plan says of an instance type."""
    row = facts.instance_types["instance_types"][name]
    gpu = row.get("gpu")
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
    if "neuron" in row:
        entry["neuron"] = row["neuron"]
    return entry


def _telemetry(context: ResolveContext) -> Telemetry:
    asked = context.values["telemetry"]
    measurements = asked.get("measurements") or measured(context.facts, asked["profile"])
    absent = _absent(context, measurements)
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


def _absent(context: ResolveContext, measurements: list[str]) -> dict[str, list[str]]:
    """Instance type → measurements that its GPUs never have, so that nobody waits for them."""
    facts = context.facts.gpudirect
    by_type: dict[str, list[str]] = {}
    for gpu in context.gpus:
        reasons = [Lacks.EVERY]
        if gpu.row["name"] in facts["encoder"]["without"]:
            reasons.append(Lacks.WITHOUT_ENCODER)
        if "fraction_of" in gpu.row:
            reasons.append(Lacks.OF_A_FRACTION)
        lacking = measurement.lacking(*reasons)
        never = [name for name in measurements if name in lacking]
        if never:
            by_type |= dict.fromkeys(gpu.instance_types, never)
    divided = measurement.lacking(Lacks.WITH_MIG)
    for name in context.section("tuning").get("mig", {}):
        known = by_type.get(name, [])
        absent = [each for each in measurements if each in divided and each not in known]
        if absent:
            by_type[name] = [*known, *absent]
    return by_type
