"""How the devices of a plan stand in CloudWatch, for the page: GPUs by the agent, Neuron devices by neuron-monitor.

What is shown of neuron-monitor's metrics: on the dashboard, and on the page of what CloudWatch has.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_ami.telemetry.measurements import PREFIX, Measured
from validator.cloudwatch import Series

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
