"""The dashboard as one self-contained page of what CloudWatch has, for people without the console.

No script, nothing loaded: curves are inline SVG, as in report.html. Every value is escaped by the templates.

Serves the page on this machine's loopback, read again from CloudWatch when a browser asks and it is old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

from gpu_ami.errors import GpuAmiError, UsageError
from gpu_ami.events import catalogue
from gpu_ami.plan import cost
from gpu_ami.recipes import URGENCIES
from gpu_ami.report import page_machine, templating
from gpu_ami.telemetry import alarms
from gpu_ami.telemetry.measurements import EVENTS_NAMESPACE, Devices, gpus
from validator.results import MetricSeries

if TYPE_CHECKING:
    from validator.cloudwatch import CloudWatch, Point, Series

IDLE_PERCENT = 5.0  # mean utilization below which a GPU is idle
_COUNTED = ("XidEvents", "SxidEvents", "GpuLostEvents", "GpuInitFailedEvents", "StackErrorEvents", "NeuronEvents")
# dimension of a code → kind of its events
_CODES = {
    "Xid": "xid",
    "SXid": "sxid",
    "NeuronError": "neuron",
    "GpuInitError": "gpu_init_failed",
    "StackError": "stack_error",
}
_HEALTH = {"Heartbeat": "Sum", "LagSeconds": "Maximum", "RecordsLost": "Sum", "EventsDropped": "Sum"}


@dataclass(frozen=True)
class Event:
    """Events of one code on one instance: `xid`, `sxid`, `neuron`, `gpu_init_failed` or `stack_error`, and how many."""

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
        _instance(name, devices, by_instance.get(name, ()), points, period, parser=read_events.parser(name, end))
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
    *, parser: Parser | None,
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


SEVERITIES = ("fatal", "critical", "warning", "app", "info")
_SILENT_SECONDS = 300.0


@dataclass(frozen=True)
class EventRow:
    """label: `Xid 79`; what: its name; alarm: the alarm that it raises, "" for none."""

    instance_id: str
    label: str
    what: str
    severity: str
    action: str
    alarm: str
    count: int


@dataclass(frozen=True)
class InstanceView:
    """anchor: for links; health: sentence about the event parser; is_healthy: whether nothing is to do about it."""

    instance: Instance
    anchor: str
    sparklines: Sequence[page_machine.Sparkline]
    health: str
    is_healthy: bool


def render(readings: Readings, place: str, refresh_seconds: int = 0) -> str:
    """The page. place: name for people; refresh_seconds: how often a browser asks again, 0 for a page that stays."""
    views = [
        InstanceView(one, f"i{number}", _sparklines(one.instance_id, [one], readings), *_health(one))
        for number, one in enumerate(readings.instances, 1)
    ]
    prices = [one.idle_usd for one in readings.instances if one.idle]
    known = [price for price in prices if price is not None]
    return templating.render(
        "dashboard.html.j2",
        readings=readings,
        devices=readings.devices,
        place=place,
        refresh_seconds=refresh_seconds,
        made=_time(readings.end),
        hours=f"{(readings.end - readings.start) / 3600:g}",
        views=views,
        count=sum(one.devices for one in readings.instances),
        utilization=_mean_utilization(readings),
        idle=sum(len(one.idle) for one in readings.instances),
        idle_percent=f"{IDLE_PERCENT:g}",
        idle_usd=sum(known),
        unknown_prices=len(prices) - len(known),
        severities=[(name, readings.severities.get(name, 0)) for name in SEVERITIES],
        events=_events(readings.events),
        actions=_actions(readings.events),
        fleet=_sparklines("all instances", readings.instances, readings, readings.devices.fleet),
    )


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(seconds))


def _mean_utilization(readings: Readings) -> str:
    metric = readings.devices.utilization
    means = [mean for one in readings.instances if (mean := one.mean(metric)) is not None]
    return f"{sum(means) / len(means):.0f} %" if means else "not measured"


def _sparklines(
    name: str, instances: Sequence[Instance], readings: Readings, only: Sequence[str] = ()
) -> list[page_machine.Sparkline]:
    """Each measurement, a line for each device; the same span of time for all."""
    series = [one for instance in instances for one in instance.series]
    metrics = dict.fromkeys(one.metric for one in series)
    shown = [metric for metric in metrics if not only or metric in only]
    title, noun = readings.devices.title, "line" if readings.devices.is_neuron else "GPU"
    drawn = (
        page_machine.sparkline(
            name,
            title(metric),
            [one for one in series if one.metric == metric],
            readings.start,
            readings.end,
            noun=noun,
        )
        for metric in shown
    )
    return [line for line in drawn if line.paths]


def _health(instance: Instance) -> tuple[str, bool]:
    parser = instance.parser
    if parser is None or parser.heartbeat_age is None:
        return "no heartbeat: gpu-ami runbook event-parser-silent", False
    text = (
        f"heartbeat {max(0.0, parser.heartbeat_age):.0f} s ago, {parser.heartbeats} in all;"
        f" lag {parser.lag_seconds:.1f} s; {parser.lost} records lost; {parser.dropped} events dropped"
    )
    silent = parser.heartbeat_age > _SILENT_SECONDS
    behind = bool(parser.lost or parser.dropped) or parser.lag_seconds > 60
    runbook = "event-parser-silent" if silent else "event-parser-behind" if behind else ""
    return (f"{text}: gpu-ami runbook {runbook}", False) if runbook else (text, True)


def _events(events: Sequence[Event]) -> list[EventRow]:
    """The most severe first."""
    rows = [_event_row(event) for event in events]
    return sorted(rows, key=lambda row: (_rank(row.severity), row.instance_id, row.label))


def _rank(severity: str) -> int:
    return SEVERITIES.index(severity) if severity in SEVERITIES else -1


_NAMED: Mapping[str, tuple[str, Callable[[str], catalogue.NamedError]]] = {
    "neuron": ("Neuron", catalogue.neuron_error), "gpu_init_failed": ("GPU init", catalogue.gpu_init_error),
    "stack_error": ("Stack", catalogue.stack_error),
}  # fmt: skip


def _event_row(event: Event) -> EventRow:
    if event.kind in _NAMED:
        return _named_row(event)
    label = f"{'SXid' if event.kind == 'sxid' else 'Xid'} {event.code}"
    try:
        found = catalogue.explain(label)
    except UsageError:
        return EventRow(
            event.instance_id, label, "not in the catalogue", "warning", "aws_support", "gpu-aws-support", event.count
        )
    alarm = alarms.alarm_of_action(found.action, found.code if found.kind == "xid" else None)
    return EventRow(
        event.instance_id, label, found.name, found.severity, found.ec2_action, alarm.name if alarm else "", event.count
    )


def _named_row(event: Event) -> EventRow:
    """Errors of Neuron, of GPUs that cannot be initialised and of the driver's stack: their codes are names."""
    title, explain = _NAMED[event.kind]
    label, known = f"{title} {event.code}", explain(event.code)
    alarm = alarms.alarm_of_action(known.action)
    return EventRow(
        event.instance_id, label, known.name, known.severity, known.ec2_action,
        alarm.name if alarm else "", event.count,
    )  # fmt: skip


def _actions(events: Sequence[Event]) -> list[tuple[str, int]]:
    """Alarm → events that raise it; alarms that call someone first."""
    counts: dict[str, int] = {}
    for row in map(_event_row, events):
        counts[row.alarm] = counts.get(row.alarm, 0) + row.count
    by_urgency = sorted(alarms.load_alarms(), key=lambda alarm: URGENCIES.index(alarm.urgency))
    return [(alarm.name, counts[alarm.name]) for alarm in by_urgency if alarm.name in counts]


_HOSTS = ("127.0.0.1", "localhost")


class Cached:
    """What `make` returned, made again when it is older than `seconds`. Thread-safe."""

    def __init__(self, make: Callable[[], str], seconds: float) -> None:
        self._make, self._seconds = make, seconds
        self._lock = threading.Lock()
        self._made_at, self._text = -1.0, ""

    def __call__(self) -> str:
        with self._lock:
            if self._made_at < 0 or time.monotonic() - self._made_at >= self._seconds:
                self._text, self._made_at = self._make(), time.monotonic()
            return self._text


def server(make: Callable[[], str], port: int, seconds: float) -> ThreadingHTTPServer:
    """A server on 127.0.0.1; its caller runs `serve_forever`. port: 0 for any that is free."""
    page = Cached(make, seconds)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            # Another name in Host leads here only by a DNS entry of a foreign page.
            if (self.headers.get("Host") or "").rpartition(":")[0] not in _HOSTS:
                self.send_error(HTTPStatus.FORBIDDEN)
            elif self.path != "/":
                self.send_error(HTTPStatus.NOT_FOUND)
            else:
                self._answer(*_made(page))

        def _answer(self, status: HTTPStatus, kind: str, text: str) -> None:
            body = text.encode("utf-8", "backslashreplace")
            self.send_response(status)
            self.send_header("Content-Type", f"text/{kind}; charset=utf-8")
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "no-store")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *arguments: object) -> None:
            """Nothing: a browser that asks is no news."""

    return ThreadingHTTPServer(("127.0.0.1", port), Handler)


def _made(page: Callable[[], str]) -> tuple[HTTPStatus, str, str]:
    try:
        return HTTPStatus.OK, "html", page()
    except GpuAmiError as error:
        return HTTPStatus.BAD_GATEWAY, "plain", f"{error}\n"
