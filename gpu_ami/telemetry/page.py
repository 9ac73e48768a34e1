"""The dashboard as one self-contained page of what CloudWatch has, for people without the console.

No script, nothing loaded: curves are inline SVG, as in report.html. Every value is escaped by the templates.

Serves the page on this machine's loopback, read again from CloudWatch when a browser asks and it is old.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from gpu_ami.errors import GpuAmiError, UsageError
from gpu_ami.events import catalogue
from gpu_ami.report import page_machine, templating
from gpu_ami.telemetry import alarms
from gpu_ami.telemetry.readings import IDLE_PERCENT, Event, Instance, Readings

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
            name, title(metric), [one for one in series if one.metric == metric], readings.start, readings.end, noun
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


def _event_row(event: Event) -> EventRow:
    if event.kind in ("neuron", "gpu_init_failed"):
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
    """Errors of Neuron, and of GPUs that cannot be initialised: their codes are names."""
    is_neuron = event.kind == "neuron"
    label = f"{'Neuron' if is_neuron else 'GPU init'} {event.code}"
    known = catalogue.neuron_error(event.code) if is_neuron else catalogue.gpu_init_error(event.code)
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
    by_urgency = sorted(alarms.load_alarms(), key=lambda alarm: alarms.URGENCIES.index(alarm.urgency))
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
