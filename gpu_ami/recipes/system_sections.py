"""The plan's sections of kernel, node family, Lustre client, tuning, Neuron's metrics and drain hook."""

from __future__ import annotations

from typing import cast

from gpu_ami.recipes.facts import ARCHITECTURES, Row, Sources
from gpu_ami.recipes.grammar import NEURON_DIMENSIONS, NOTICES
from gpu_ami.recipes.rules import ResolveContext
from validator.plan_document import Components, DrainHook, Kernel, Lustre, NeuronMonitor, NodeRole, Tuning


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


def node_section(context: ResolveContext) -> Components:
    """The section of the node family's own role; a plain EC2 instance has none."""
    if context.node_name == "ec2":
        return {}
    section: NodeRole = {"version": context.node_version or ""}
    if context.node_name == "ecs":  # for the agent, which schedules tasks on it
        section["accelerator"] = next(iter(sorted(context.accelerators)), "none")
    return cast(Components, {f"node_{context.node_name}": section})


def lustre_section(context: ResolveContext, sources: Sources) -> Components:
    """The FSx for Lustre client, where the recipe asks for it."""
    row = context.facts.lustre["clients"].get(context.os_name)
    if "lustre" not in context.values or row is None:
        return {}
    sources.add(f"Lustre client of {context.os_name}", row)
    if context.kernel not in row.get("kernels", [context.kernel]):
        sources.note(f"not verified: a module of {context.os_name}'s Lustre client for kernel {context.kernel}")
    section: Lustre = {"package": row["package"]}
    if "repository" in row:
        section["repository"] = {
            "url": row["repository"]["url"],
            "components": row["repository"]["components"],
            "key_url": row["repository"]["key_url"],
            "suite": context.os["codename"],
            "key_fingerprint": context.section("lustre")["key_fingerprint"].upper(),
        }
    return {"lustre": section}


def tuning_section(context: ResolveContext, sources: Sources) -> Components:
    """Limits, sysctl, clocks and MIG, where the recipe asks for them."""
    if "tuning" not in context.values:
        return {}
    asked, facts = context.section("tuning"), context.facts.tuning
    names = [gpu.row["name"] for gpu in context.gpus] if asked.get("clocks", True) else []
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
        gpu = context.instance_types[name]["gpu"]["name"]
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


def neuron_monitor_section(context: ResolveContext, components: Components) -> Components:
    """How neuron-monitor's reports are published, where the plan installs Neuron's tools."""
    if "aws-neuronx-tools" not in components.get("neuron", {}).get("packages", {}):
        return {}
    asked = context.values["neuron_monitor"]
    section: NeuronMonitor = {
        "namespace": asked["namespace"],
        "dimensions": [name for name in NEURON_DIMENSIONS if name in asked["dimensions"]],
        "high_resolution": asked["high_resolution"],
        "interval_s": context.values["telemetry"]["interval_s"],
        "log": asked["log"],
        "log_group": asked["log_group"],
    }
    return {"neuron_monitor": section}


def drain_hook_section(context: ResolveContext) -> Components:
    """What runs scripts at notices of interruption, where the recipe asks for it."""
    asked = context.values["drain_hook"]
    if not asked["enabled"]:
        return {}
    section: DrainHook = {
        "notices": [name for name in NOTICES if name in asked["notices"]],
        "timeout_s": asked["timeout_s"],
        "log": asked["log"],
        "log_group": asked["log_group"],
    }
    return {"drain_hook": section}
