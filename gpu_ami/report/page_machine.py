"""One machine of report.html, as its template needs it: facts, boot, checks by role, hops, captured events.

The metrics of its GPUs during the proof: a sparkline for each, a line for each GPU.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from gpu_ami.files import read_json
from gpu_ami.report import templating
from gpu_ami.report.document import ORDER, PASS, HostReport, Report, counts
from validator.results import CheckRecord, MetricSeries, Verdict

_FACTS = {
    "os": "system", "kernel": "kernel", "driver": "driver", "agent": "agent", "boot_time": "boot",
    "slow_units": "longest units",
}  # fmt: skip


@dataclass(frozen=True)
class Bar:
    """A labelled bar; left and width in per cent of the whole, as CSS."""

    name: str
    label: str
    left: str
    width: str
    kind: str = ""


def bar(name: str, label: str, start: float, end: float, total: float, *, kind: str = "") -> Bar:
    """From `start` to `end` of `total` (seconds)."""
    scale = 100 / total if total > 0 else 0
    return Bar(name, label, f"{start * scale:.2f}%", f"{max(0.0, end - start) * scale:.2f}%", kind)


@dataclass(frozen=True)
class CheckView:
    """One check and the anchor of its fold."""

    record: CheckRecord
    anchor: str

    @property
    def has_passed(self) -> bool:
        return self.record.verdict == PASS

    @property
    def has_values(self) -> bool:
        return self.record.observed is not None or self.record.planned is not None

    @property
    def is_as_planned(self) -> bool:
        return self.record.observed == self.record.planned

    @property
    def figures(self) -> list[tuple[str, object]]:
        """The values in full length, where the check's own line does not show them."""
        observed, planned = self.record.observed, self.record.planned
        long = any(len(templating.one_line(value)) > templating.SHORT for value in (observed, planned))
        if not self.has_values or (self.has_passed and not long):
            return []
        if self.is_as_planned:
            return [("observed as planned", observed)]
        return [("observed", observed), ("planned", planned)]


@dataclass(frozen=True)
class RoleView:
    """The checks of a role: those that did not pass, those that did, and the worst verdict."""

    name: str
    red: Sequence[CheckView]
    passed: Sequence[CheckView]

    @property
    def count(self) -> int:
        return len(self.red) + len(self.passed)

    @property
    def worst(self) -> Verdict:
        return min((check.record.verdict for check in (*self.red, *self.passed)), key=ORDER.index)


@dataclass(frozen=True)
class HopsView:
    name: str
    bars: Sequence[Bar]


@dataclass(frozen=True)
class EventView:
    promise: str
    fields: Sequence[tuple[str, object]]


@dataclass
class MachineView:
    """A machine and the anchor of its section."""

    host: HostReport
    report: Report
    anchor: str

    @property
    def name(self) -> str:
        return self.host.name

    @cached_property
    def verdict(self) -> Verdict:
        return self.host.verdict(self.report.roles)

    @cached_property
    def checks(self) -> list[CheckView]:
        return [CheckView(check, f"{self.anchor}-c{number}") for number, check in enumerate(self.host.checks)]

    @property
    def counts(self) -> str:
        return counts(self.host.checks)

    @property
    def facts(self) -> list[tuple[str, object]]:
        facts = self.host.facts
        return [(label, facts[key]) for key, label in _FACTS.items() if facts.get(key)]

    @property
    def further_facts(self) -> list[tuple[str, object]]:
        return [(key, value) for key, value in self.host.facts.items() if key not in _FACTS]

    @property
    def boot(self) -> list[Bar]:
        """Each stage from the end of the one before it."""
        total, before, bars = max(self.host.boot.values(), default=0.0), 0.0, []
        for name, seconds in sorted(self.host.boot.items(), key=lambda entry: entry[1]):
            bars.append(bar(name, templating.seconds(seconds), before, seconds, total))
            before = seconds
        return bars

    @property
    def roles(self) -> list[RoleView]:
        """The worst first."""
        checks: dict[str, list[CheckView]] = {}
        for check in self.checks:
            checks.setdefault(check.record.role, []).append(check)
        roles = [
            RoleView(name, [c for c in entries if not c.has_passed], [c for c in entries if c.has_passed])
            for name, entries in checks.items()
        ]
        return sorted(roles, key=lambda role: ORDER.index(role.worst))

    @property
    def hops(self) -> list[HopsView]:
        return [HopsView(check.id.rpartition("::")[2], _hops(check)) for check in self.host.checks if check.hops]

    @property
    def sparklines(self) -> list[Sparkline]:
        return sparklines(self.host)

    @property
    def events(self) -> Iterable[EventView]:
        for check in self.host.checks:
            event = _event(check)
            if event is not None:
                yield EventView(check.promise, list(event.items()))


def _event(check: CheckRecord) -> Mapping[str, object] | None:
    """The event that a check captured: an own entry, or what it observed where that is one."""
    event = check.event or check.observed
    return event if isinstance(event, Mapping) and "kind" in event and "code" in event else None


def _hops(check: CheckRecord) -> list[Bar]:
    """A hop "A → B" begins where an earlier one of this check ended in A, otherwise at the source."""
    reached: dict[str, float] = {}
    spans = []
    for hop in check.hops:
        source, _, target = (part.strip() for part in hop.hop.partition("→"))
        start = reached.get(source, 0.0)
        reached.setdefault(target, start + hop.seconds)
        spans.append((hop, start, start + hop.seconds))
    total = max(end for _, _, end in spans)
    return [bar(hop.hop, templating.seconds(hop.seconds, 2), start, end, total) for hop, start, end in spans]


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
    machine: str, metric: str, entries: Sequence[MetricSeries], first: float, last: float, *, noun: str = "GPU"
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


BOM_FILE = "bom.cdx.json"
_NO_REPOSITORY = "repository not recorded"
_PROPERTY = "gpu-ami:"


@dataclass(frozen=True)
class Origin:
    """Components of one kind and origin: a repository, a signer, a role. entries: name and version."""

    name: str
    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Materials:
    """The bill of materials. serial: its serial number; base: the AMI that the image was built on, "" if not known."""

    serial: str
    base: str
    packages: Sequence[Origin]
    modules: Sequence[Origin]
    files: Sequence[Origin]

    @property
    def kinds(self) -> list[tuple[str, int, Sequence[Origin]]]:
        """Each kind that is there: its noun, how many components, and those by origin."""
        kinds = (("package", self.packages), ("kernel module", self.modules), ("role file", self.files))
        return [(noun, sum(len(origin.entries) for origin in origins), origins) for noun, origins in kinds if origins]


def load(folder: Path) -> Materials | None:
    """The bill of materials in the folder of a report; None where there is none."""
    bom = read_json(folder / BOM_FILE)
    return None if bom is None else _materials(bom)


def _materials(bom: Mapping[str, Any]) -> Materials:
    components = [entry for entry in _list(bom.get("components")) if isinstance(entry, Mapping)]
    return Materials(
        _text(bom.get("serialNumber")),
        _base(bom),
        _by_origin(components, "library", "repository", _NO_REPOSITORY),
        _by_origin(components, "device-driver", "signer", "not signed"),
        _by_origin(components, "file", "role", "no role"),
    )


def planned_versions(report: Report) -> list[tuple[str, str]]:
    """Component and version of what the plan pins and a role of the image installs, and of its kernel."""
    return [
        (name, _text(section["version"]))
        for name, section in report.plan.items()
        if isinstance(section, Mapping) and section.get("version") and name in {"kernel", *report.roles}
    ]


def _base(bom: Mapping[str, Any]) -> str:
    image = _mapping(_mapping(bom.get("metadata")).get("component"))
    ancestors = _list(_mapping(image.get("pedigree")).get("ancestors"))
    base = _mapping(ancestors[0]) if ancestors else {}
    return " ".join(text for text in (_text(base.get("name")), _text(base.get("version"))) if text)


def _by_origin(components: Iterable[Mapping[str, Any]], kind: str, key: str, unknown: str) -> list[Origin]:
    """The largest first."""
    origins: dict[str, list[tuple[str, str]]] = {}
    for component in components:
        if component.get("type") == kind:
            entry = _text(component.get("name")), _text(component.get("version"))
            origins.setdefault(_property(component, key) or unknown, []).append(entry)
    listed = [Origin(name, sorted(entries)) for name, entries in origins.items()]
    return sorted(listed, key=lambda origin: (-len(origin.entries), origin.name))


def _property(component: Mapping[str, Any], key: str) -> str:
    rows = (_mapping(row) for row in _list(component.get("properties")))
    return next((_text(row.get("value")) for row in rows if row.get("name") == f"{_PROPERTY}{key}"), "")


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
