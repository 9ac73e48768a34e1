"""AWS's Neuron SDK: the driver, what runs and measures models on its devices, and the publisher of neuron-monitor."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.facts import NO_ROW, Sources
from gpu_ami.recipes.rules import (
    PRESENCE,
    Assignment,
    Component,
    Conflict,
    Observed,
    OwnLog,
    ResolveContext,
    file,
    has_packages,
    module,
    package,
    versioned,
)
from validator.plan_document import NeuronMonitor, PackagedComponent
from validator.schema import Choice, Flag, Keys, ListOf, Text

TOOLS = "aws-neuronx-tools"


def planned_packages(context: ResolveContext, version: str) -> dict[str, str]:
    """Name → version of each package of a release that the image's devices can use."""
    facts = context.facts.neuron
    row = facts["releases"][version]
    packages = {
        "aws-neuronx-dkms": row["driver"],
        "aws-neuronx-runtime-lib": row.get("runtime"),
        "aws-neuronx-collectives": row.get("collectives"),
        TOOLS: row.get("tools"),
    }
    devices = {row["neuron"]["name"] for row in context.instance_types.values() if "neuron" in row}
    if devices <= set(facts["driver_only"]["devices"]):
        del packages["aws-neuronx-runtime-lib"], packages["aws-neuronx-collectives"]
    return {name: version for name, version in packages.items() if version}


def _neuron_section(context: ResolveContext, versions: Assignment, sources: Sources) -> PackagedComponent:
    facts, family = context.facts.neuron, context.os["family"]
    repository = facts["repositories"][family]
    sources.add("the Neuron repository's key", facts)
    section: PackagedComponent = {
        "version": versions["neuron"],
        # The release is followed by a build number that no release note names.
        "packages": {name: f"{version}*" for name, version in planned_packages(context, versions["neuron"]).items()},
        "repository": {
            "url": f"{repository['url']}/",
            "suite": context.os["codename"] if family == "debian" else "./",
            "components": ["main"] if family == "debian" else [],
            "key_url": f"{repository['url']}/{repository['key']}",
            "key_fingerprint": facts["key_fingerprint"],
        },
    }
    if not repository.get("signed_index", True):
        section["repository"]["signed_index"] = False
    return section


def drives_devices(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
    row = context.facts.neuron["releases"][chosen["neuron"]]
    for name, facts in context.instance_types.items():
        device = facts.get("neuron", {}).get("name")
        if device and device not in row["devices"]:
            text = f"Neuron {chosen['neuron']} (driver {row['driver'].rstrip('.')}) does not support {device} of {name}"
            source = row["settled" if device in row.get("not_for", ()) else "source"]
            if not any(device in other["devices"] for other in context.facts.neuron["releases"].values()):
                source = NO_ROW  # a device that is newer than the table
            yield Conflict("neuron.version", text, source, ("neuron",))


_NEURON = Component(
    "neuron",
    "Neuron",
    layer="node",
    after=("container_toolkit",),
    installed_after=("lustre",),
    is_chosen=True,
    keys=versioned("2.33.0"),
    meanings={"version": "release of the Neuron SDK; exact, a branch, or `newest`"},
    section=PackagedComponent,
    write=_neuron_section,
    rules=((("neuron",), drives_devices), (("neuron",), has_packages("neuron"))),
    observed=Observed(
        (
            package(r"aws-neuronx?-dkms", r"^(\d+\.\d+\.\d+)"),
            *module("neuron", r"^(\d+\.\d+\.\d+)"),
            file("/opt/aws/neuron/bin/neuron-ls", PRESENCE),
        )
    ),
    size_gib=2,
)


# Of neuron-monitor's metrics; each further one makes more series.
DIMENSIONS = ("instance_id", "instance_type", "ami_id", "neuron_runtime_tag")


def _monitor_section(context: ResolveContext, versions: Assignment, _sources: Sources) -> NeuronMonitor | None:
    if "neuron" not in versions or "neuron" in context.provided:
        return None
    if TOOLS not in planned_packages(context, versions["neuron"]):
        return None
    asked = context.values["neuron_monitor"]
    return {
        "namespace": asked["namespace"],
        "dimensions": [name for name in DIMENSIONS if name in asked["dimensions"]],
        "high_resolution": asked["high_resolution"],
        "interval_s": context.values["telemetry"]["interval_s"],
        "log": asked["log"],
        "log_group": asked["log_group"],
    }


_MONITOR_LOG = OwnLog(
    "/var/log/neuron-metrics.jsonl", "/ec2/accelerated/neuron-metrics", "the metrics as embedded metric documents"
)

_NEURON_MONITOR = Component(
    "neuron_monitor",
    layer="telemetry",
    after=("event_parser",),
    keys=Keys(
        {
            "namespace": Text("GpuAmi/Neuron", r"[\w./#:-]{1,255}"),
            "dimensions": ListOf(Choice(DIMENSIONS)),
            "high_resolution": Flag(),
            **_MONITOR_LOG.keys(),
        },
        needed=("namespace", "dimensions", "high_resolution", *_MONITOR_LOG.keys()),
    ),
    meanings={
        "namespace": "CloudWatch namespace of neuron-monitor's metrics; not one that begins with `AWS/`",
        "dimensions": "their dimensions; `neuron_runtime_tag` makes series for each application",
        "high_resolution": "true: stored by the second, with `telemetry.interval_s` below 60; costs more",
        **_MONITOR_LOG.meanings("neuron_monitor"),
    },
    section=NeuronMonitor,
    write=_monitor_section,
    own_log=_MONITOR_LOG,
)

COMPONENTS = (_NEURON, _NEURON_MONITOR)
