"""Publishes neuron-monitor's reports to CloudWatch, where the plan installs Neuron's tools."""

from __future__ import annotations

from gpu_ami.recipes.components import neuron
from gpu_ami.recipes.facts import Sources
from gpu_ami.recipes.rules import Assignment, Component, ResolveContext
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


COMPONENT = Component(
    "neuron_monitor",
    layer="telemetry",
    after=("event_parser",),
    keys=Keys(
        {
            "namespace": Text("GpuAmi/Neuron", r"[\w./#:-]{1,255}"),
            "dimensions": ListOf(Choice(DIMENSIONS)),
            "high_resolution": Flag(),
            "log": Text("/var/log/neuron-metrics.jsonl", r"/[\w./+-]+"),
            "log_group": Text("/ec2/accelerated/neuron-metrics", r"[\w./#-]{1,512}"),
        },
        needed=("namespace", "dimensions", "high_resolution", "log", "log_group"),
    ),
    meanings={
        "namespace": "CloudWatch namespace of neuron-monitor's metrics; not one that begins with `AWS/`",
        "dimensions": "their dimensions; `neuron_runtime_tag` makes series for each application",
        "high_resolution": "true: stored by the second, with `telemetry.interval_s` below 60; costs more",
        "log": "file with the metrics as embedded metric documents",
        "log_group": "log group of `neuron_monitor.log`",
    },
    section=NeuronMonitor,
    write=_section,
)
