"""The metrics of a machine's GPUs during the proof, in report.html: a sparkline for each, a line for each GPU."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from gpu_ami.report import templating
from gpu_ami.report.document import HostReport
from validator.results import MetricSeries

_PREFIX = "nvidia_smi_"
# The beginning of a measurement's name → its unit.
_UNITS = {
    "utilization": "%", "temperature": "°C", "power": "W", "fan_speed": "%", "memory": "MiB", "clocks": "MHz",
    "encoder_stats_average_fps": "fps", "encoder_stats_average_latency": "µs",
}  # fmt: skip
WIDTH, HEIGHT, _MARGIN = 100, 24, 2  # of the viewBox of an SVG
_Dot = tuple[float, float]  # seconds since 1970, value


@dataclass(frozen=True)
class Sparkline:
    """One measurement. range: from the smallest to the largest value; paths: a line for each GPU and boot, for SVG."""

    name: str
    range: str
    title: str
    paths: Sequence[str]
    is_constant: bool


def sparklines(host: HostReport) -> list[Sparkline]:
    """Each measurement of the GPUs, in the order of the report; of what has no series by GPU, the one of all."""
    by_metric: dict[str, list[MetricSeries]] = {}
    for check in host.checks:
        for series in check.series:
            by_metric.setdefault(series.metric, []).append(series)
    own = {name: [one for one in entries if one.gpu is not None] or entries for name, entries in by_metric.items()}
    dots = [dot for entries in own.values() for series in entries for run in _runs(series) for dot in run]
    if not dots:
        return []
    first, last = min(time for time, _ in dots), max(time for time, _ in dots)
    drawn = (sparkline(host.name, metric, entries, first, last) for metric, entries in own.items())
    return [line for line in drawn if line.paths]


def _runs(series: MetricSeries) -> Iterator[list[_Dot]]:
    """Datapoints without a gap between them. What is not a finite number is a gap."""
    run: list[_Dot] = []
    for index, value in enumerate(series.values):
        if isinstance(value, int | float) and math.isfinite(value):
            run.append((series.start + index * series.period, float(value)))
        elif run:
            yield run
            run = []
    if run:
        yield run


def sparkline(
    machine: str, metric: str, entries: Sequence[MetricSeries], first: float, last: float, noun: str = "GPU"
) -> Sparkline:
    """The curves of one measurement between two times, a path for each series. noun: what each series is of."""
    runs = [run for series in entries for run in _runs(series)]
    values = [value for run in runs for _, value in run]
    low, high = min(values, default=0.0), max(values, default=0.0)
    name = metric.removeprefix(_PREFIX)
    unit = next((unit for start, unit in _UNITS.items() if name.startswith(start)), "")
    shown = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    shown = f"{shown} {unit}".rstrip()
    gpus = templating.plural(len({series.gpu for series in entries}), noun)
    title = f"{name} of {machine}: {shown}; {gpus}, {templating.plural(len(values), 'datapoint')}"
    return Sparkline(name, shown, title, [_path(run, first, last, low, high) for run in runs], low == high)


def _path(run: Iterable[_Dot], first: float, last: float, low: float, high: float) -> str:
    """The `d` of an SVG path; a single datapoint is a dot, which a round line end draws."""
    points = [f"{_x(time, first, last):.1f} {_y(value, low, high):.1f}" for time, value in run]
    return f"M{points[0]}" + ("".join(f"L{point}" for point in points[1:]) or "h.01")


def _x(time: float, first: float, last: float) -> float:
    inside = WIDTH - 2 * _MARGIN
    return _MARGIN + (inside * (time - first) / (last - first) if last > first else inside / 2)


def _y(value: float, low: float, high: float) -> float:
    inside = HEIGHT - 2 * _MARGIN
    return HEIGHT - _MARGIN - (inside * (value - low) / (high - low) if high > low else inside / 2)
