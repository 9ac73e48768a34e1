"""The nearest recipe by which gpu-ami would rebuild an image, its plan with origin `observed`, and differences."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from gpu_ami.errors import UsageError
from gpu_ami.observe.captures import capture_of, effective_config
from gpu_ami.observe.observation import Found, Observation, same
from gpu_ami.plan import Plan, with_digest
from gpu_ami.recipes import VARIABLES, Facts, Recipe, all_recipes, facts_of, read_recipe, resolve, resolver
from gpu_ami.recipes.components import Registry, components, kernel
from gpu_ami.recipes.facts import ARCHITECTURES, branch, parts
from gpu_ami.recipes.rules import ResolveContext
from validator.plan import OBSERVED
from validator.plan_document import ResolvedPlan
from validator.probes.agent import config as agent_config

RECIPE_FILE = "recipe.yml"
# What of a component's section a recipe says beside the version.
_CHOSEN = (
    "nvidia_driver", "cuda", "cudnn", "nccl", "efa", "ofi_nccl", "gdrcopy", "gds", "dcgm", "container_toolkit", "mkl",
)  # fmt: skip
# Types of GPUs that drivers of every branch in service support, in both flavours: what is found is not judged for
# hardware that nobody asked for.
_DEFAULT_TYPES = {"x86_64": "g5.12xlarge", "arm64": "g5g.xlarge"}
_NEURON_TYPE = "inf2.24xlarge"


def similar_recipe(observation: Observation, facts: Facts) -> Recipe | None:
    """Of our recipes, the one with the same system, node family and accelerator and the most of its components."""
    system, row = observation.system(facts)
    if row is None:
        return None
    best: tuple[float, Recipe] | None = None
    for path in all_recipes():
        if not path.is_relative_to(VARIABLES):  # a site's recipes may need facts of their own
            continue
        recipe = read_recipe(path, facts)
        values = recipe.values
        if values["os"] != system or values["architecture"] != observation.architecture:
            continue
        family, version = observation.node
        score = 8.0 * (values["node"] == family) + 2.0 * (str(values.get("node_version", "")) == version)
        kinds = {facts.instance_types["families"][name.split(".")[0]]["accelerator"] for name in _types(values, facts)}
        score += 4.0 * (observation.accelerator in kinds)
        named = {name for name in _CHOSEN if name in values}
        score += len(named & set(observation.found)) - 0.5 * len(named ^ (set(observation.found) & set(_CHOSEN)))
        if best is None or score > best[0]:
            best = (score, recipe)
    return best[1] if best else None


def _types(values: Mapping[str, Any], facts: Facts) -> list[str]:
    return [name for name in values["instance_types"] if name.split(".")[0] in facts.instance_types["families"]]


def instance_types(observation: Observation, facts: Facts, asked: Sequence[str] = ()) -> list[str]:
    """Those that were asked for, else one whose accelerator the image has a driver for.

    UsageError: the facts do not know one that was asked for.
    """
    known = facts.instance_types["instance_types"]
    unknown = [name for name in asked if name not in known]
    if unknown:
        hint = "gpu-ami facts lists the instance types"
        raise UsageError(f"--instance-type {', '.join(unknown)}: not in the facts", hint=hint)
    if asked:
        return list(asked)
    if observation.accelerator != "neuron":
        return [_DEFAULT_TYPES[observation.architecture]]
    recipe = similar_recipe(observation, facts)
    able = [name for name in recipe.values["instance_types"] if name in known] if recipe else []
    return [name for name in able if "neuron" in known[name]][:1] or [_NEURON_TYPE]


def recipe_values(observation: Observation, facts: Facts, types: Sequence[str]) -> dict[str, Any]:
    """The keys of the nearest recipe, with the versions that the facts know. UsageError: not a system of the facts."""
    name, system = observation.system(facts)
    if system is None:
        raise UsageError(f"no recipe can be written for {name}: it is not in variables/facts/operating_systems.yml")
    family, version = observation.node
    values: dict[str, Any] = {
        "description": f"The nearest recipe of {observation.document['read_of']}, written by gpu-ami observe"[:200],
        "flag": f"{name}-observed", "os": name, "instance_types": list(types),
    }  # fmt: skip
    if observation.architecture != "x86_64":
        values["architecture"] = observation.architecture
    if family != "ec2":
        values |= {"node": family} | ({"node_version": version} if version else {})
    if observation.kernel_series in system["kernels"] and observation.kernel_series != system["kernels"][0]:
        values["kernel"] = {"version": observation.kernel_series}
    for component in _CHOSEN:
        if (found := observation.found.get(component)) and found.version:
            values[component] = {"version": nearest_version(found, facts)} | _more(observation, component, facts)
    return values


def nearest_version(found: Found, facts: Facts) -> str:
    """The observed version, else the newest that the facts know of its branch, else the newest of all."""
    known = facts.releases(found.name)
    if found.version in known:
        return found.version
    longer = [release for release in known if same(release, found.version)]
    of_branch = [release for release in known if branch(release) == branch(found.version)]
    candidates = longer or of_branch or list(known)
    return max(candidates, key=parts) if candidates else found.version


def _more(observation: Observation, component: str, facts: Facts) -> dict[str, Any]:
    if component == "nvidia_driver":
        source = driver_source(observation, facts)
        flavour = {"flavour": observation.flavour} if observation.flavour else {}
        return flavour | ({"source": source} if source != "vendor" else {})
    if component == "efa":
        return {"mode": efa_mode(observation)}
    if component == "container_toolkit" and observation.node[0] == "ec2":
        runtimes = observation.settings["runtimes"] or observation.settings["has_runtime"]
        return {"runtime": runtimes[0]} if runtimes else {}
    return {}


def efa_mode(observation: Observation) -> str:
    """full or minimal: whether libfabric was installed."""
    readings = observation.found["efa"].readings
    return "full" if any("fi_info" in row["where"] or "libfabric" in row["where"] for row in readings) else "minimal"


def driver_source(observation: Observation, facts: Facts) -> str:
    """vendor or distribution, by the package's full version."""
    driver = observation.found["nvidia_driver"]
    name, _ = observation.system(facts)
    row = facts.distribution_drivers["systems"].get(name, {}).get("releases", {}).get(driver.version)
    full = str(row["package_version"]) if row else ""
    return "distribution" if full and any(same_package(one, full) for one in driver.packages.values()) else "vendor"


def same_package(one: str, other: str) -> bool:
    """Whether two versions of packages are the same, whatever rebuild of the distribution: `~deb12u1`, `+b1`."""
    return one.partition("~")[0].partition("+")[0] == other.partition("~")[0].partition("+")[0]


def nearest_recipe(observation: Observation, facts: Facts, types: Sequence[str]) -> str:
    """recipe.yml. What differs from what was observed is a comment beside it. UsageError: not a system of the facts."""
    import yaml

    values = recipe_values(observation, facts, types)
    lines = [
        f"# The nearest recipe of {observation.document['read_of']}, by which gpu-ami would rebuild it.",
        "# Written by gpu-ami observe. Comments: what was observed and gpu-ami would not build.",
    ]
    for name, found in observation.found.items():
        if name in values and isinstance(values[name], dict) and not same(values[name]["version"], found.version):
            lines.append(f"# {found.label} {found.version} was observed; the facts do not know it")
        elif name in _CHOSEN and name not in values:
            lines.append(f"# {found.label} is there, in a version that no source names")
    return "\n".join(lines) + "\n" + yaml.safe_dump(values, sort_keys=False, allow_unicode=True, width=140)


def context_of(observation: Observation, facts: Facts, types: Sequence[str]) -> ResolveContext | None:
    """What rules are given: of the nearest recipe, on these instance types; None where the facts lack the system."""
    _, system = observation.system(facts)
    if system is None or observation.architecture not in ARCHITECTURES:
        return None
    values = {
        "architecture": observation.architecture, "node": observation.node[0], "accept": [],
        "telemetry": {"measurements": agent_config.measurements(_checked(observation))},
        **recipe_values(observation, facts, types),
    }  # fmt: skip
    values["node"] = observation.node[0] if observation.node[0] in facts.node_families else "ec2"
    if observation.node[1]:
        values["node_version"] = observation.node[1]
    if observation.kernel_series:
        values["kernel"] = {"version": observation.kernel_series}
    if (agent := observation.found.get("cloudwatch_agent")) and agent.version:
        values["cloudwatch_agent"] = {"version": agent.version}
    return _AsFound(values, facts, components())


class _AsFound(ResolveContext):
    """No component is the base AMI's: what is there is judged, whoever brought it."""

    @property
    def provided(self) -> Mapping[str, str]:
        return {}


def _checked(observation: Observation) -> Mapping[str, object]:
    """The effective configuration of the agent; {} where it is no such document."""
    config = effective_config(observation)
    try:
        agent_config.measurements(config)
        agent_config.interval(config)
        agent_config.log_files(config, {})
    except (ValueError, KeyError, TypeError):
        return {}
    return config


def observed_plan(observation: Observation, facts: Facts, types: Sequence[str], image: str) -> Plan:
    """The plan with origin `observed`: what is there, for the checks that mean something for any image.

    It promises nothing: no value of it is one that the image is compared with.
    """
    name, row = observation.system(facts)
    system = dict(row) if row else {}
    read = observation.document["os"]
    redhat = str(observation.document["package_database"]).startswith("rpm")
    section = {
        "id": read["id"], "version": read["version"], "codename": read["codename"],
        "family": str(system.get("family") or ("redhat" if redhat else "debian")),
        "ssh_user": observation.settings["login_user"] or str(system.get("ssh_user", "root")),
        "python": "", "end_of_life": str(system.get("end_of_life", "")),
    }  # fmt: skip
    family, version = observation.node
    document: dict[str, Any] = {
        "schema": "gpu-ami/plan/1", "image": image, "origin": OBSERVED,
        "description": f"as found: {read['name'] or name}", "flag": image, "recipe": {"file": "", "sha256": ""},
        "os": section, "architecture": observation.architecture,
        "node": {"family": family} | ({"version": version} if version else {}),
        "source_ami": {}, "build": {"instance_type": types[0], "root_volume_gib": 0},
        "instance_types": [_instance_type(facts, one) for one in types],
        "roles": [*(one for one in observation.found if one in components()), OBSERVED],
        **_sections(observation, facts, types),
        "kernel": _kernel(observation, system),
        "cloudwatch_agent": _agent(observation),
        "telemetry": _telemetry(observation),
        "observed": {
            "request": _request(observation.registry), "absent": observation.absent,
            "absent_by": observation.absent_sources,
            "captures": [vars(way) for way in capture_of(observation)],
            "agent_from": [part["path"] for part in observation.agent["parts"]],
        },
        "sources": [], "notes": [],
    }  # fmt: skip
    if "cloudwatch_agent" not in observation.found:
        del document["cloudwatch_agent"]
    return Plan(with_digest(cast(ResolvedPlan, document)))


def _request(registry: Registry) -> dict[str, list[list[str]]]:
    return {name: [one.request() for one in part.observed.sources] for name, part in registry.items() if part.observed}


def _instance_type(facts: Facts, name: str) -> dict[str, Any]:
    return dict(resolver.instance_type_row(facts, name))


def _kernel(observation: Observation, system: Mapping[str, Any]) -> dict[str, Any]:
    series = observation.kernel_series
    if system:
        return dict(kernel.kernel_section(system, series, observation.architecture))
    return {"version": series, "package": "", "headers": "", "hold": []}


def _sections(observation: Observation, facts: Facts, types: Sequence[str]) -> dict[str, dict[str, Any]]:
    sections: dict[str, dict[str, Any]] = {}
    rows = facts.instance_types["instance_types"]
    for name, found in observation.found.items():
        if name in ("cloudwatch_agent", "drain_hook"):  # a section of its own; each check of the hook needs a recipe
            continue
        section: dict[str, Any] = {"version": found.version}
        if found.packages:
            section["packages"] = dict(found.packages)
        if name == "nvidia_driver":
            section["flavour"] = observation.flavour or "open"
            if any("nvidia-current" in str(row["where"]) for row in found.readings if row.get("kernel")):
                section["module"] = "nvidia-current"
        if name == "fabric_manager":
            section["instance_types"] = [one for one in types if rows[one]["nvswitch"]]
        if name == "imex":
            families = facts.instance_types["families"]
            section["instance_types"] = [one for one in types if families[rows[one]["family"]].get("imex")]
        if name == "efa":
            section["mode"] = efa_mode(observation)
        if name == "cuda":
            # Nothing is promised: what a driver of the same major version runs (CUDA compatibility, minor versions).
            section["compatibility"] = "minor"
        if name == "container_toolkit":
            runtimes = observation.settings["runtimes"] or observation.settings["has_runtime"]
            section["runtime"] = runtimes[0] if runtimes else ""
            section["cdi"] = bool(found.version) and parts(found.version) >= parts("1.16")
        if name == "lustre":
            section["package"] = next(iter(found.packages), "")
        if name == "event_parser":
            section = {"raw_log": "/var/log/gpuevent.log", "json_log": "/var/log/gpuevent.jsonl"}
        sections[name] = section
    return sections


def _agent(observation: Observation) -> dict[str, Any]:
    found = observation.found.get("cloudwatch_agent")
    empty = dict.fromkeys(("url", "signature_url", "key_url", "key_fingerprint"), "")
    config = _checked(observation)
    return {"version": found.version if found else "", **empty, "config": dict(config), "gpu_config": {}}


def _telemetry(observation: Observation) -> dict[str, Any]:
    """What the image's own configuration promises."""
    config = _checked(observation)
    metrics: Any = config.get("metrics", {})
    namespace = metrics.get("namespace") if isinstance(metrics, Mapping) else None
    logs = agent_config.log_files(config, {}) if config else []
    return {
        "profile": "", "interval_s": agent_config.interval(config) if config else agent_config.DEFAULT_INTERVAL,
        "namespace": str(namespace or agent_config.DEFAULT_NAMESPACE),
        "measurements": agent_config.measurements(config),
        "raw_log_group": logs[0].group if logs else "", "json_log_group": logs[-1].group if logs else "",
        "log_stream": logs[0].stream if logs else "{instance_id}",
    }  # fmt: skip


def against(observation: Observation, recipe: Path) -> list[str]:
    """How an image differs from what a recipe promises, a line each. UsageError: mistakes of the recipe."""
    facts = facts_of(recipe)
    plan = cast(Mapping[str, Any], resolve(read_recipe(recipe, facts), facts))
    lines = []
    read = observation.document["os"]
    if (plan["os"]["id"], plan["os"]["version"]) != (read["id"], read["version"]):
        lines.append(f"system: expected {plan['os']['id']} {plan['os']['version']}, got {read['id']} {read['version']}")
    if plan["architecture"] != observation.architecture:
        lines.append(f"architecture: expected {plan['architecture']}, got {observation.architecture}")
    family, release = observation.node
    expected = str(plan["node"].get("version", ""))
    if plan["node"]["family"] != family:
        lines.append(f"node family: expected {plan['node']['family']}, got {family}")
    elif expected and release and not same(expected, release):
        lines.append(f"{family}: expected {expected}, got {release}")
    if observation.kernel_series and plan["kernel"]["version"] != observation.kernel_series:
        lines.append(f"kernel: expected {plan['kernel']['version']}, got {observation.kernel_series}")
    for name, declared in components().items():
        if not declared.observed or name.startswith("node_"):
            continue
        label, found = declared.label or name, observation.found.get(name)
        if plan.get("nvidia_driver", {}).get("branches") and name in ("nvidia_driver", "fabric_manager"):
            lines += _branch_difference(label, plan["nvidia_driver"]["branches"], found, name)
        else:
            lines += _component_difference(label, plan.get(name), found, name)
    lines += _flavour_difference(plan, observation)
    if "cloudwatch_agent" in observation.found:
        planned = plan["cloudwatch_agent"]["config"]
        wanted = {file.path: file.group for file in agent_config.log_files(planned, {})}
        sent = {file.path: file.group for file in agent_config.log_files(_checked(observation), {})}
        lines += [
            f"log {path}: expected group {group}, got {sent.get(path, 'nothing')}"
            for path, group in wanted.items()
            if sent.get(path) != group
        ]
    return lines


def against_manifest(observation: Observation, manifest: Mapping[str, Any]) -> list[str]:
    """How an image differs from what its publisher says is in it, a line each. UsageError: it is no such document.

    manifest: a version-info.json of EKS (amazon-eks-ami, generate-version-info.sh: packages, kernel_modules, binaries),
    or the value of an SSM parameter of ECS's AMIs (ecs_agent_version).
    """
    packages, agent = manifest.get("packages"), manifest.get("ecs_agent_version")
    if not isinstance(packages, Mapping) and not isinstance(agent, str):
        raise UsageError(
            "expected an object with packages (EKS) or ecs_agent_version (ECS)",
            hint="version-info.json of an EKS AMI, or the value of /aws/service/ecs/optimized-ami/…/recommended",
        )
    listed = {str(name): str(version) for name, version in (packages or {}).items()}
    lines = []
    for name, declared in observation.registry.items():
        found = observation.found.get(name)
        there = found.packages if found else {}
        patterns = (
            [one.target for one in declared.observed.sources if one.kind == "package"] if declared.observed else []
        )
        wanted = {one for one in listed if any(re.fullmatch(pattern, one) for pattern in patterns)} if listed else set()
        lines += [
            f"package {one}: expected {listed.get(one, 'nothing')}, got {there.get(one, 'nothing')}"
            for one in sorted(wanted | (set(there) if listed else set()))
            if listed.get(one) != there.get(one)
        ]
    modules = manifest.get("kernel_modules")
    driver = observation.found.get("nvidia_driver")
    promised = modules.get("nvidia") if isinstance(modules, Mapping) else None
    if promised and (driver is None or driver.version != promised):
        lines.append(f"module nvidia: expected {promised}, got {driver.version if driver else 'nothing'}")
    ecs = observation.found.get("node_ecs")
    if isinstance(agent, str) and not (ecs and any(full.startswith(f"{agent}-") for full in ecs.packages.values())):
        got = ", ".join(ecs.packages.values()) if ecs and ecs.packages else "nothing"
        lines.append(f"ECS agent: expected {agent}, got {got}")
    return lines


def _component_difference(label: str, planned: Mapping[str, Any] | None, found: Found | None, name: str) -> list[str]:
    if planned is None and found is not None:
        bundled = name in ("ofi_nccl", "imex", "fabric_manager", "lustre")
        return [f"{label}: {found.version or 'there'}, which the recipe does not have"] if not bundled else []
    if planned is not None and found is None:
        return [f"{label}: expected {planned.get('version', 'it')}, got nothing"]
    version = str((planned or {}).get("version", ""))
    if found and version and found.version and not same(version, found.version) and name != "neuron":
        return [f"{label}: expected {version}, got {found.version}"]
    return []


def _branch_difference(label: str, branches: Mapping[str, Any], found: Found | None, name: str) -> list[str]:
    """Of a base AMI that keeps several drivers as trees, of which a first boot installs one with its fabric manager."""
    there = {version for versions in found.by_source.values() for version in versions} if found else set()
    wanted = sorted(str(branch["version"]) for branch in branches.values())
    if there == set(wanted) or (name == "fabric_manager" and there <= set(wanted)):
        return []
    return [f"{label}: expected {' and '.join(wanted)}, got {' and '.join(sorted(there)) or 'nothing'}"]


def _flavour_difference(plan: Mapping[str, Any], observation: Observation) -> list[str]:
    planned = plan.get("nvidia_driver", {}).get("flavour", "")
    if planned and observation.flavour and planned not in ("boot", observation.flavour):
        return [f"driver flavour: expected {planned}, got {observation.flavour}"]
    return []
