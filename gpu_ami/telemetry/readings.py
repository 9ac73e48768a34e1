"""What CloudWatch has of the instances of a plan, of the last hours: read once, for the page.

ListMetrics tells which series there are (a new one up to 15 minutes late), GetMetricData what is in them.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from gpu_ami.plan import cost
from gpu_ami.telemetry.measurements import EVENTS_NAMESPACE, Devices, gpus
from validator.results import MetricSeries

if TYPE_CHECKING:
    from validator.cloudwatch import CloudWatch, Point, Series

IDLE_PERCENT = 5.0  # mean utilization below which a GPU is idle
_COUNTED = ("XidEvents", "SxidEvents", "GpuLostEvents", "GpuInitFailedEvents", "NeuronEvents")
# dimension of a code → kind of its events
_CODES = {"Xid": "xid", "SXid": "sxid", "NeuronError": "neuron", "GpuInitError": "gpu_init_failed"}
_HEALTH = {"Heartbeat": "Sum", "LagSeconds": "Maximum", "RecordsLost": "Sum", "EventsDropped": "Sum"}


@dataclass(frozen=True)
class Event:
    """Events of one code on one instance: `xid`, `sxid`, `neuron` or `gpu_init_failed`, and how many."""

    instance_id: str
    kind: str
    code: str
    count: int


@dataclass(frozen=True)
class Parser:
    """Health of an instance's event parser. heartbeat_age: seconds since the last one, None for none in the window."""

    heartbeats: int
    heartbeat_age: float | None
    lag_seconds: float
    lost: int
    dropped: int


@dataclass(frozen=True)
class Instance:
    """series: of each device; idle: indexes of its idle GPUs; idle_usd: an hour of those, None without a price.

    reported: the number of its devices, None where the series tell.
    """

    instance_id: str
    instance_type: str
    series: Sequence[MetricSeries] = ()
    parser: Parser | None = None
    idle: Sequence[int] = ()
    idle_usd: float | None = None
    reported: int | None = None

    @property
    def devices(self) -> int:
        return len({one.gpu for one in self.series}) if self.reported is None else self.reported

    def mean(self, metric: str) -> float | None:
        """Mean over all devices and the window."""
        return _mean(value for one in self.series if one.metric == metric for value in one.values)


@dataclass(frozen=True)
class Readings:
    """start, end: seconds since 1970. severities: severity → events."""

    region: str
    namespace: str
    start: float
    end: float
    instances: Sequence[Instance]
    events: Sequence[Event] = ()
    severities: Mapping[str, int] = field(default_factory=dict)
    drills: int = 0
    devices: Devices = field(default_factory=lambda: gpus(""))


def read(cloudwatch: CloudWatch, devices: Devices, hours: float, period: int = 60) -> Readings:
    """Of the last hours. ApiRefused: CloudWatch did not answer."""
    end = time.time()
    start = end - hours * 3600
    by_statistic: dict[str, list[Series]] = {}
    for one in sorted(cloudwatch.known_series(devices.namespace, {})):
        by_statistic.setdefault(devices.statistic(one), []).append(one)
    by_statistic.pop("", None)
    points: dict[Series, list[Point]] = {}
    for statistic, of_devices in by_statistic.items():
        points |= cloudwatch.points(of_devices, start, period, statistic)
    of_events = sorted(cloudwatch.known_series(EVENTS_NAMESPACE, {}))
    read_events = _EventReader(cloudwatch, of_events, start)
    by_instance: dict[str, list[Series]] = {}
    for one in sorted(points):
        if points[one]:
            by_instance.setdefault(_dimension(one, devices.instance), []).append(one)
    ids = sorted({*by_instance, *read_events.instances()})
    instances = [
        _instance(name, devices, by_instance.get(name, ()), points, period, read_events.parser(name, end))
        for name in ids
    ]
    return Readings(
        cloudwatch.region, devices.namespace, start, end, instances, read_events.by_code(), read_events.by_severity(),
        read_events.total("DrillEvents"), devices,
    )  # fmt: skip


def _dimension(series: Series, name: str) -> str:
    return dict(series.dimensions).get(name, "")


def _instance(
    name: str, devices: Devices, series: Sequence[Series], points: Mapping[Series, Sequence[Point]], period: int,
    parser: Parser | None,
) -> Instance:  # fmt: skip
    instance_type = next((_dimension(one, devices.instance_type) for one in series), "")
    drawn = [
        MetricSeries.of_points(one.name, devices.index(one), period, {point.time: point.value for point in points[one]})
        for one in series
    ]
    if not devices.has_price:
        return Instance(name, instance_type, drawn, parser, reported=_reported(devices, series, points))
    idle = [one.gpu for one in drawn if one.metric == devices.utilization and _is_idle(one)]
    indexes = sorted(index for index in idle if index is not None)
    return Instance(name, instance_type, drawn, parser, indexes, _idle_usd(instance_type, indexes, drawn))


def _reported(devices: Devices, series: Sequence[Series], points: Mapping[Series, Sequence[Point]]) -> int:
    """Number of devices in the newest report; 0 without one."""
    newest = [max(points[one], key=lambda point: point.time) for one in series if one.name == devices.count]
    return round(max(newest, key=lambda point: point.time).value) if newest else 0


def _is_idle(series: MetricSeries) -> bool:
    mean = _mean(series.values)
    return mean is not None and mean < IDLE_PERCENT


def _idle_usd(instance_type: str, idle: Sequence[int], drawn: Sequence[MetricSeries]) -> float | None:
    """Price of the idle GPUs' share of the instance."""
    price = cost.hourly_usd(instance_type)
    gpus = len({one.gpu for one in drawn})
    return None if price is None or not gpus else price * len(idle) / gpus


def _mean(values: Iterable[float | None]) -> float | None:
    present = [value for value in values if value is not None]
    return sum(present) / len(present) if present else None


class _EventReader:
    """The event parser's metrics, summed over the window; each statistic is asked for once."""

    def __init__(self, cloudwatch: CloudWatch, known: Sequence[Series], start: float) -> None:
        self._known = [one for one in known if _dimension(one, "InstanceId")]
        wanted: dict[str, list[Series]] = {}
        for one in self._known:
            wanted.setdefault(_HEALTH.get(one.name, "Sum"), []).append(one)
        self._points: dict[Series, list[Point]] = {}
        for statistic, series in wanted.items():
            self._points |= cloudwatch.points(series, start, 60, statistic)

    def instances(self) -> set[str]:
        return {_dimension(one, "InstanceId") for one in self._known if self._points[one]}

    def _of(self, metric: str, *dimensions: str) -> list[Series]:
        names = {"InstanceId", *dimensions}
        return [one for one in self._known if one.name == metric and {name for name, _ in one.dimensions} == names]

    def _sum(self, series: Series) -> int:
        return round(sum(point.value for point in self._points[series]))

    def total(self, metric: str) -> int:
        return sum(self._sum(one) for one in self._of(metric))

    def by_severity(self) -> dict[str, int]:
        counts: dict[str, int] = {}
        for one in [series for metric in _COUNTED for series in self._of(metric, "Severity")]:
            severity = _dimension(one, "Severity")
            counts[severity] = counts.get(severity, 0) + self._sum(one)
        return {severity: count for severity, count in counts.items() if count}

    def by_code(self) -> list[Event]:
        found = [
            Event(_dimension(one, "InstanceId"), kind, _dimension(one, key), self._sum(one))
            for metric in _COUNTED
            for key, kind in _CODES.items()
            for one in self._of(metric, key)
        ]
        return [event for event in found if event.count]

    def parser(self, instance_id: str, now: float) -> Parser | None:
        points = {
            one.name: self._points[one]
            for metric in _HEALTH
            for one in self._of(metric)
            if _dimension(one, "InstanceId") == instance_id
        }
        beats = [point for point in points.get("Heartbeat", ()) if point.value > 0]
        if not any(points.values()):
            return None
        age = now - max(point.time for point in beats) if beats else None
        values = {name: [point.value for point in entries] for name, entries in points.items()}
        return Parser(
            round(sum(values.get("Heartbeat", ()))), age, max(values.get("LagSeconds", ()), default=0.0),
            round(sum(values.get("RecordsLost", ()))), round(sum(values.get("EventsDropped", ()))),
        )  # fmt: skip
