"""The measurements of a GPU that the CloudWatch agent's nvidia_gpu plugin publishes: one row each.

Derived from it: the choices of `telemetry.measurements`, the metric sets (variables/facts/telemetry.yml), the values
that are read of nvidia-smi (probes/nvidia_smi.py), the limits of a datapoint (checks/metrics.py), groups and units of
dashboards (gpu_ami/telemetry), measurements of the agent's replica (measurements.json: `pytest --update-golden`).

Sources: amazon-cloudwatch-agent v1.300071.0, translator/translate/metrics/config/registered_metrics.go (names);
plugins/inputs/nvidia_smi (elements; PR 1052, PR 1679 for power_draw). Read 2026-11-22.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Literal

from validator.plan_document import Gpu as PlannedGpu

PREFIX = "nvidia_smi_"  # of the names of the metrics
Shown = Mapping[str, float]  # values of nvidia-smi for the same GPU on the host


class Group(StrEnum):
    """Headings of a dashboard, in its order."""

    UTILIZATION = "Utilization"
    MEMORY = "Memory"
    POWER = "Power"
    TEMPERATURE = "Temperature"
    FAN = "Fan"
    CLOCKS = "Clocks"
    PCIE = "PCIe link"
    ENCODER = "Encoder"


class Lacks(StrEnum):
    """GPUs that do not have a measurement: nvidia-smi shows N/A, and nobody waits for it."""

    EVERY = "every GPU of an instance type: they have no fan"
    WITHOUT_ENCODER = "GPUs without a video encoder (variables/facts/gpudirect.yml)"
    # nvidia-smi shows "N/A" on a GPU with MIG enabled: "GPU utilization is not supported when MIG mode is enabled".
    # Basis: a third-party page that quotes NVIDIA's MIG user guide (https://docs.nvidia.com/datacenter/tesla/
    # mig-user-guide/); the guide itself was not read, so this is unverified.
    WITH_MIG = "GPUs with MIG enabled"
    # Public captures of nvidia-smi -q in guests: RTXA6000-24Q and GRID V100 with 535.183.06 and 550: N/A, whereas
    # memory, utilization, encoder and current clocks are shown.
    OF_A_FRACTION = "vGPUs, which show no sensor and no link of the board"


@dataclass(frozen=True)
class Measurement:
    """A measurement, in the unit of its datapoints (MiB, MHz, W, °C, percent; "" for a number).

    paths: elements below <gpu> in `nvidia-smi -q -x` → the first agent release that reads them ("" for all); the first
    that a driver has is read. most: limit of the board; least: lowest value. slack: largest difference of a datapoint
    from the value of nvidia-smi on the host; None if the value depends on load, because the two are read at different
    times. sets: metric sets of variables/facts/telemetry.yml. lacks: GPUs without it. whole: published as an integer.
    """

    name: str
    group: Group
    unit: str
    paths: Mapping[str, str]
    most: Callable[[PlannedGpu, Shown], float]
    least: float = 0.0
    slack: float | None = None
    sets: tuple[str, ...] = ()
    lacks: Lacks | None = None
    whole: bool = True


def _percent(_board: PlannedGpu, _shown: Shown) -> float:
    return 100.0


def _total(board: PlannedGpu, shown: Shown) -> float:
    # The fact is from the data sheet; the driver's total excludes reserved memory, so the host's value comes first.
    return shown.get("memory_total", float(board["memory_mib"]))


def _power(board: PlannedGpu, _shown: Shown) -> float:
    return board["power_limit_w"] * 1.1  # short peaks exceed the limit


def _constant(value: float) -> Callable[[PlannedGpu, Shown], float]:
    return lambda _board, _shown: value


def _clock(name: Literal["graphics", "sm", "memory", "video"]) -> Callable[[PlannedGpu, Shown], float]:
    return lambda board, _shown: board["max_clock_mhz"][name]


_ALL = ("compute", "graphics")
_G = Group
_MIG, _NO_ENCODER, _FRACTION = Lacks.WITH_MIG, Lacks.WITHOUT_ENCODER, Lacks.OF_A_FRACTION
_POWER_PATHS = {
    "gpu_power_readings/power_draw": "1.300034.0",  # drivers from R535 on
    "gpu_power_readings/instant_power_draw": "1.300056.0",  # from R570 on
    "power_readings/power_draw": "",
}
_GEN, _WIDTH = "pci/pci_gpu_link_info/pcie_gen/current_link_gen", "pci/pci_gpu_link_info/link_widths/current_link_width"

# In the order of a metric set.
MEASUREMENTS: tuple[Measurement, ...] = (
    Measurement("utilization_gpu", _G.UTILIZATION, "%", {"utilization/gpu_util": ""}, _percent, sets=_ALL, lacks=_MIG),
    Measurement(
        "utilization_memory", _G.UTILIZATION, "%", {"utilization/memory_util": ""}, _percent, sets=_ALL, lacks=_MIG
    ),
    Measurement(
        "power_draw", _G.POWER, "W", _POWER_PATHS, _power, least=1.0, sets=("compute",), lacks=_FRACTION, whole=False
    ),
    Measurement(
        "temperature_gpu", _G.TEMPERATURE, "°C", {"temperature/gpu_temp": ""}, _constant(100), 10.0, sets=_ALL,
        lacks=_FRACTION,
    ),
    Measurement("fan_speed", _G.FAN, "%", {"fan_speed": ""}, _percent, lacks=Lacks.EVERY),
    Measurement("memory_total", _G.MEMORY, "MiB", {"fb_memory_usage/total": ""}, _total, slack=0.0, sets=_ALL),
    Measurement("memory_used", _G.MEMORY, "MiB", {"fb_memory_usage/used": ""}, _total, sets=_ALL),
    Measurement("memory_free", _G.MEMORY, "MiB", {"fb_memory_usage/free": ""}, _total, sets=_ALL),
    # an idle link slows down
    Measurement(
        "pcie_link_gen_current", _G.PCIE, "", {_GEN: ""}, lambda board, _: board["pcie_gen"], 1.0, sets=_ALL,
        lacks=_FRACTION,
    ),
    Measurement(
        "pcie_link_width_current", _G.PCIE, "", {_WIDTH: ""}, lambda board, _: board["pcie_width"], 1.0, 0.0, _ALL,
        _FRACTION,
    ),
    Measurement(
        "encoder_stats_session_count", _G.ENCODER, "", {"encoder_stats/session_count": ""}, _constant(64),
        sets=("graphics",), lacks=_NO_ENCODER,
    ),
    Measurement(
        "encoder_stats_average_fps", _G.ENCODER, "", {"encoder_stats/average_fps": ""}, _constant(10_000),
        sets=("graphics",), lacks=_NO_ENCODER,
    ),
    Measurement(
        "encoder_stats_average_latency", _G.ENCODER, "", {"encoder_stats/average_latency": ""}, _constant(10_000_000),
        sets=("graphics",), lacks=_NO_ENCODER,
    ),
    Measurement(
        "clocks_current_graphics", _G.CLOCKS, "MHz", {"clocks/graphics_clock": ""}, _clock("graphics"), sets=_ALL
    ),
    Measurement("clocks_current_sm", _G.CLOCKS, "MHz", {"clocks/sm_clock": ""}, _clock("sm"), sets=_ALL),
    Measurement("clocks_current_memory", _G.CLOCKS, "MHz", {"clocks/mem_clock": ""}, _clock("memory"), sets=_ALL),
    Measurement("clocks_current_video", _G.CLOCKS, "MHz", {"clocks/video_clock": ""}, _clock("video"), sets=_ALL),
)  # fmt: skip
BY_NAME: Mapping[str, Measurement] = {row.name: row for row in MEASUREMENTS}


def of_set(name: str) -> list[str]:
    """Names of the measurements of a metric set."""
    return [row.name for row in MEASUREMENTS if name in row.sets]


def lacking(*reasons: Lacks) -> frozenset[str]:
    """Names of the measurements that these GPUs lack."""
    return frozenset(row.name for row in MEASUREMENTS if row.lacks in reasons)


def grouped(names: list[str]) -> Iterator[tuple[Group, list[str]]]:
    """Each group with those of the names that it shows."""
    for group in Group:
        if found := [name for name in names if name in BY_NAME and BY_NAME[name].group is group]:
            yield group, found
