"""What a plan measures, as alarms and dashboards need it: metric names, units, groups, log groups, limits of GPUs.

What the page and the dashboard show of devices: GPUs by the agent, Neuron devices by neuron-monitor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_ami.errors import UsageError
from gpu_ami.recipes import PlanDocument, agent
from validator.cloudwatch import Series
from validator.measurement import BY_NAME, PREFIX, grouped
from validator.plan_document import NeuronMonitor, section

EVENTS_NAMESPACE = "GpuAmi/Events"  # the event parser's embedded metrics
ALARMS_NAMESPACE = "GpuAmi/Alarms"  # counts of the metric filters


@dataclass(frozen=True)
class InstanceTypeLimits:
    """Of one instance type: number of its GPUs, half of their SM clock (MHz, whole)."""

    gpus: int
    half_clock: int


@dataclass(frozen=True)
class Measured:
    """namespace, measurements (without prefix), period (s) in which each GPU has a datapoint, and the log groups.

    neuron: how neuron-monitor's reports are published; such a plan measures no GPU.
    own_log_groups: of Neuron's publisher and the drain hook, by their logical ids in a template.
    """

    image: str
    namespace: str
    measurements: Sequence[str]
    interval_s: int
    raw_log_group: str
    json_log_group: str
    retention_days: int | None
    limits: Mapping[str, InstanceTypeLimits]
    absent: frozenset[str]
    neuron: NeuronMonitor | None = None
    own_log_groups: Mapping[str, str] = field(default_factory=dict)

    @property
    def log_groups(self) -> dict[str, str]:
        """Logical id in a template → log group that the agent sends to."""
        return {"RawLogGroup": self.raw_log_group, "JsonLogGroup": self.json_log_group, **self.own_log_groups}

    @property
    def period(self) -> int:
        """The shortest whole minute that holds a datapoint of each GPU."""
        return 60 * math.ceil(self.interval_s / 60)

    @property
    def witness(self) -> str:
        """A measurement that every GPU of the plan has, by which reporting GPUs are counted."""
        preferred = ("memory_total", "memory_used", *self.measurements)
        return PREFIX + next(name for name in preferred if name in self.measurements and name not in self.absent)

    def has(self, *names: str) -> bool:
        """Whether every GPU of the plan has these measurements."""
        return all(name in self.measurements and name not in self.absent for name in names)

    def groups(self) -> dict[str, list[str]]:
        """Group → its measurements, in the order of a dashboard."""
        return dict(grouped(list(self.measurements)))


def unit_of(measurement: str) -> str:
    return BY_NAME[measurement].unit if measurement in BY_NAME else ""


def measured(plan: PlanDocument) -> Measured:
    """UsageError: the plan measures neither GPUs nor Neuron devices, or has no event parser."""
    telemetry = plan.get("telemetry")
    neuron = None if telemetry and telemetry["measurements"] else section(plan, "neuron_monitor", NeuronMonitor) or None
    if not telemetry or not (telemetry["measurements"] or neuron):
        hint = "give the recipe a telemetry.profile that measures them (docs/recipes.md)"
        raise UsageError(f"plan {plan['image']}: it measures no GPU and no Neuron device", hint=hint)
    if "event_parser" not in plan:  # of an image that others built
        hint = "gpu-ami attach installs it on a running machine"
        raise UsageError(f"plan {plan['image']}: it has no event parser, whose log the alarms read", hint=hint)
    absent = telemetry.get("absent", {})
    return Measured(
        plan["image"], telemetry["namespace"], telemetry["measurements"], telemetry["interval_s"],
        telemetry["raw_log_group"], telemetry["json_log_group"], telemetry.get("retention_days"),
        {
            row["name"]: InstanceTypeLimits(row["gpu_count"], row["gpu"]["max_clock_mhz"]["sm"] // 2)
            for row in plan["instance_types"] if not neuron
        },
        frozenset(name for names in absent.values() for name in names), neuron,
        {
            f"{name.partition('_')[0].title()}LogGroup": own["log_group"]
            for name, own in agent.publishers(plan).items()
        },
    )  # fmt: skip


UTILIZATION, DEVICES = "neuroncore_utilization", "neuron_device_count"


@dataclass(frozen=True)
class Shown:
    """A metric with its title, and the statistic that says something of it."""

    title: str
    metric: str
    statistic: str


SHOWN = (
    Shown("Utilization of the cores (%)", UTILIZATION, "Average"),
    Shown("Memory of the devices (bytes)", "runtime_memory_neuron_device", "Maximum"),
    Shown("Memory of the host (bytes)", "runtime_memory_host", "Maximum"),
    Shown("Latency of executions, p99 (s)", "total_latency_p99", "Maximum"),
    Shown("Executions completed", "executions_completed", "Sum"),
    Shown("Executions timed out", "executions_timed_out", "Sum"),
    Shown("Hardware errors", "execution_errors_hardware", "Sum"),
    Shown("Uncorrected ECC errors of HBM", "mem_ecc_uncorrected", "Maximum"),
    Shown("Uncorrected ECC errors of SRAM", "sram_ecc_uncorrected", "Maximum"),
    Shown("Corrected ECC errors of HBM", "mem_ecc_corrected", "Maximum"),
    Shown("Devices", DEVICES, "Minimum"),
    Shown("Reports of neuron-monitor", "reports", "Sum"),
)


# Shown of all GPUs: a line for each.
_GPU_FLEET = (
    "utilization_gpu", "utilization_memory", "memory_used", "power_draw", "temperature_gpu", "clocks_current_sm",
    "clocks_current_memory",
)  # fmt: skip


@dataclass(frozen=True)
class Devices:
    """noun: one of them. instance, instance_type, indexes: names of dimensions. utilization: metric, and what it is of.

    count: metric that has their number; without one, the indexes tell. shown: metric → its title and statistic; empty
    for every measurement. fleet: metrics shown of all instances. silent: the alarm of an instance that reports none.
    has_price: whether a device's share of the instance's price is known.
    """

    noun: str
    namespace: str
    instance: str
    instance_type: str
    indexes: tuple[str, ...]
    utilization: str
    busy: str
    silent: str
    fleet: tuple[str, ...]
    count: str = ""
    shown: Mapping[str, Shown] = field(default_factory=dict)
    has_price: bool = False

    @property
    def is_neuron(self) -> bool:
        return bool(self.shown)

    def statistic(self, series: Series) -> str:
        """By which a series is read; "" for one that the page does not show."""
        names = {name for name, _ in series.dimensions}
        if self.instance not in names:
            return ""
        if self.shown:
            return self.shown[series.name].statistic if series.name in self.shown else ""
        return "Average" if series.name.startswith(PREFIX) and names.issuperset(self.indexes) else ""

    def index(self, series: Series) -> int | None:
        """Number of the GPU, core or device; None for a series of the instance."""
        values = dict(series.dimensions)
        return next((int(values[name]) for name in self.indexes if name in values), None)

    def title(self, metric: str) -> str:
        return self.shown[metric].title if metric in self.shown else metric


def gpus(namespace: str) -> Devices:
    return Devices(
        "GPU", namespace, "InstanceId", "InstanceType", ("index",), f"{PREFIX}utilization_gpu", "GPU",
        "gpu-metrics-missing", tuple(PREFIX + name for name in _GPU_FLEET), has_price=True,
    )  # fmt: skip


def of_plan(facts: Measured) -> Devices:
    if facts.neuron is None:
        return gpus(facts.namespace)
    shown = {one.metric: one for one in SHOWN}
    return Devices(
        "Neuron device", facts.neuron["namespace"], "instance_id", "instance_type",
        ("neuroncore_index", "neuron_device_index"), UTILIZATION, "core", "neuron-monitor-silent",
        tuple(shown), DEVICES, shown,
    )  # fmt: skip
