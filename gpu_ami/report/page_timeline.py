"""When everything ran, in report.html: a lane for the run and for each machine; how long each hop took."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from gpu_ami.report import templating
from gpu_ami.report.document import Report, Stage
from gpu_ami.report.page_machine import Bar, bar

RUN = "run"  # the lane of what is of no machine
# The first word of a stage's name → what it does; colour and legend follow from that.
_KINDS = {
    "build": "build", "launch": "boot", "boot": "boot", "reboot": "boot", "stop-start": "boot", "connect": "boot",
    "check": "check",
}  # fmt: skip
_LEGEND = {"prepare": "preparation", "build": "build", "boot": "launch and restarts", "check": "checks"}
_STEPS = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 28800)  # seconds between two ticks
_TICKS = 6
_ROUNDING = 0.05  # s; times are recorded in hundredths


@dataclass(frozen=True)
class Tick:
    """A time on the axis; left in per cent, as CSS."""

    label: str
    left: str


@dataclass(frozen=True)
class Lane:
    """The stages of one machine, or of the run: in rows, so that none covers another. text: the same in words."""

    name: str
    rows: Sequence[Sequence[Bar]]
    text: str


@dataclass(frozen=True)
class Timeline:
    """All lanes on one axis. legend: kinds of stages that are there, with what they are called."""

    lanes: Sequence[Lane]
    ticks: Sequence[Tick]
    legend: Mapping[str, str]


@dataclass(frozen=True)
class HopPanel:
    """One hop on every machine and after every restart, on a scale of its own."""

    hop: str
    bars: Sequence[Bar]


def timeline(report: Report) -> Timeline | None:
    """None where the report does not say when its stages began."""
    known = [stage for stage in report.stages if stage.start is not None]
    total = max((_end(stage) for stage in known), default=0.0)
    if not total:
        return None
    names = dict.fromkeys(["", *(host.name for host in report.hosts), *(stage.machine for stage in known)])
    stages = {name: [stage for stage in known if stage.machine == name] for name in names}
    kinds = {_kind(stage) for stage in known}
    return Timeline(
        [_lane(name, entries, total) for name, entries in stages.items() if entries],
        _ticks(total),
        {kind: text for kind, text in _LEGEND.items() if kind in kinds},
    )


def _end(stage: Stage) -> float:
    return (stage.start or 0.0) + stage.seconds


def _kind(stage: Stage) -> str:
    return _KINDS.get(stage.stage.partition(" ")[0], "prepare")


def _lane(name: str, stages: Sequence[Stage], total: float) -> Lane:
    ordered = sorted(stages, key=lambda stage: (stage.start or 0.0, stage.level))
    text = "; ".join(f"{stage.stage}: {_label(stage)}" for stage in ordered)
    return Lane(name or RUN, [[_bar(stage, total) for stage in row] for row in _rows(ordered)], text)


def _rows(stages: Iterable[Stage]) -> list[list[Stage]]:
    """Each stage, in order of their starts, in the first row in which the one before it has ended."""
    rows: list[list[Stage]] = []
    for stage in stages:
        free = (row for row in rows if _end(row[-1]) <= (stage.start or 0.0) + _ROUNDING)
        row = next(free, None)
        if row is None:
            rows.append([stage])
        else:
            row.append(stage)
    return rows


def _label(stage: Stage) -> str:
    start = f" from {templating.seconds(stage.start)}" if stage.start is not None else ""
    return f"{'failed after ' if stage.outcome == 'failed' else ''}{templating.seconds(stage.seconds)}{start}"


def _bar(stage: Stage, total: float) -> Bar:
    kind = f"{_kind(stage)}{' FAIL' if stage.outcome == 'failed' else ''}"
    name = " ".join(stage.stage.replace(stage.machine, "").split()) if stage.machine else stage.stage
    name = f"✗ {name}" if stage.outcome == "failed" else name
    return bar(name, _label(stage), stage.start or 0.0, _end(stage), total, kind)


def _ticks(total: float) -> list[Tick]:
    step = next((step for step in _STEPS if total / step < _TICKS), 86400)
    return [Tick(_clock(at), bar("", "", at, at, total).left) for at in range(0, int(total) + 1, step)]


def _clock(seconds: int) -> str:
    if seconds % 60:
        return f"{seconds} s"
    return f"{seconds // 60} min" if seconds else "0"


def hop_panels(report: Report) -> list[HopPanel]:
    """A panel for each hop, in the order in which the first machine has them; of several events, the slowest."""
    panels: dict[str, dict[str, float]] = {}
    for host in report.hosts:
        for check in host.checks:
            name = f"{host.name} after {check.after}" if check.after else host.name
            for hop in check.hops:
                slowest = panels.setdefault(hop.hop, {})
                slowest[name] = max(hop.seconds, slowest.get(name, hop.seconds))
    return [HopPanel(hop, _panel_bars(slowest)) for hop, slowest in panels.items()]


def _panel_bars(slowest: Mapping[str, float]) -> list[Bar]:
    total = max(slowest.values())
    return [bar(name, templating.seconds(seconds, 2), 0.0, seconds, total) for name, seconds in slowest.items()]


def stage_bars(report: Report) -> list[Bar]:
    """Every stage with its duration, in the order in which they ended."""
    total = max((_end(stage) for stage in report.stages), default=0.0)
    bars = []
    for stage in report.stages:
        failed = stage.outcome == "failed"
        label = f"{'failed after ' if failed else ''}{templating.seconds(stage.seconds)}"
        kind = f"in{min(stage.level, 3)}{' FAIL' if failed else ''}"
        bars.append(bar(stage.stage, label, stage.start or 0.0, _end(stage), total, kind))
    return bars
