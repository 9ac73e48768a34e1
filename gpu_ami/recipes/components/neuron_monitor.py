"""Publishes neuron-monitor's reports to CloudWatch, where the plan installs Neuron's tools."""

from __future__ import annotations

from gpu_ami.recipes.components import neuron
from gpu_ami.recipes.facts import Sources
from gpu_ami.recipes.rules import Assignment, Component, OwnLog, ResolveContext
from validator.plan_document import NeuronMonitor
from validator.schema import Choice, Flag, Keys, ListOf, Text

# Of neuron-monitor's metrics; each further one makes more series.
DIMENSIONS = ("instance_id", "instance_type", "ami_id", "neuron_runtime_tag")


def _section(context: ResolveContext, versions: Assignment, _sources: Sources) -> NeuronMonitor | None:
    if "neuron" not in versions or "neuron" in context.provided:
        return None
    if neuron.TOOLS not in neuron.planned_packages(context, versions["neuron"]):
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


_LOG = OwnLog(
    "/var/log/neuron-metrics.jsonl", "/ec2/accelerated/neuron-metrics", "the metrics as embedded metric documents"
)

COMPONENT = Component(
    "neuron_monitor",
    layer="telemetry",
    after=("event_parser",),
    keys=Keys(
        {
            "namespace": Text("GpuAmi/Neuron", r"[\w./#:-]{1,255}"),
            "dimensions": ListOf(Choice(DIMENSIONS)),
            "high_resolution": Flag(),
            **_LOG.keys(),
        },
        needed=("namespace", "dimensions", "high_resolution", *_LOG.keys()),
    ),
    meanings={
        "namespace": "CloudWatch namespace of neuron-monitor's metrics; not one that begins with `AWS/`",
        "dimensions": "their dimensions; `neuron_runtime_tag` makes series for each application",
        "high_resolution": "true: stored by the second, with `telemetry.interval_s` below 60; costs more",
        **_LOG.meanings("neuron_monitor"),
    },
    section=NeuronMonitor,
    write=_section,
    own_log=_LOG,
)
