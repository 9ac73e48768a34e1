"""Alarms of a site's own, in `site/alarms.yml`: lines of a log group, or a metric of each instance; their runbooks.

An alarm of logs is raised by one line in five minutes that its filter pattern finds, an alarm of a metric by the worst
instance (CloudWatch user guide, "Create alarms on Metrics Insights queries").
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError, counted
from gpu_ami.files import data_dir, lines_of, located, read_yaml
from validator.schema import Choice, Integer, Keys, ListOf, MapOf, Mistake, Number, Text

FILE = "alarms.yml"
URGENCIES = ("page", "ticket")
STATISTICS = ("AVG", "COUNT", "MAX", "MIN", "SUM")  # of Metrics Insights
_HINT = "docs/site.md#alarms; docs/examples/site/alarms.yml is an example"
_SENTENCES = r"(?s).{1,450}"  # two of them and the runbook's name fit into an AlarmDescription (1024 characters)
_NAME = r"[a-z][a-z0-9]*(-[a-z0-9]+)*"


@dataclass(frozen=True)
class LoggedLines:
    """Lines of a log group that a CloudWatch filter pattern finds."""

    group: str
    pattern: str


@dataclass(frozen=True)
class WatchedMetric:
    """A metric of each instance, compared with a limit for some minutes. One of `above` and `below` is given."""

    namespace: str
    name: str
    statistic: str
    above: float | None = None
    below: float | None = None
    minutes: int = 5
    dimension: str = "InstanceId"


@dataclass(frozen=True)
class SiteAlarm:
    """An alarm with its runbook. One of logs and metric is given."""

    name: str
    title: str
    urgency: str
    meaning: str
    first: str
    commands: tuple[str, ...]
    support: str
    source: str
    logs: LoggedLines | None = None
    metric: WatchedMetric | None = None


_LIMIT = Number()
_ROW = Keys(
    {
        "title": Text("The monitoring agent lost its server"),
        "urgency": Choice(URGENCIES),
        "meaning": Text("Nothing reaches the monitoring", _SENTENCES, "text of at most 450 characters"),
        "first": Text("Restart the agent", _SENTENCES, "text of at most 450 characters"),
        "commands": ListOf(Text("systemctl status company-monitor")),
        "support": Text("If it comes back, ask the team that runs it"),
        "source": Text("https://monitoring.example.com/docs"),
        "logs": Keys(
            {"group": Text("/company/monitor", r"[\w./#-]{1,512}"), "pattern": Text('"connection lost"')},
            ("group", "pattern"),
        ),
        "metric": Keys(
            {
                "namespace": Text("Company", r"[^:\"]{1,255}"),
                "name": Text("queue_length", r"[\w./-]{1,255}"),
                "statistic": Choice(STATISTICS),
                "above": _LIMIT,
                "below": _LIMIT,
                "minutes": Integer(1, 60),
                "dimension": Text("InstanceId", r"[\w-]{1,255}"),
            },
            ("namespace", "name", "statistic"),
        ),
    },
    ("title", "urgency", "meaning", "first"),
)
_GRAMMAR = MapOf(_NAME, "company-monitor-lost", _ROW)


def alarm_mistakes(path: Path) -> list[str]:
    """Every mistake of a site's alarms, each with its line. UsageError: the file cannot be read, or is not YAML."""
    document = read_yaml(path, _HINT)
    lines = lines_of(path)
    return [f"{located(str(path), lines, one.path)}: {one.path}: {one.message}" for one in _mistakes(document)]


def read_site_alarms(path: Path) -> tuple[SiteAlarm, ...]:
    """The alarms of a site, in the file's order; none where there is no file. UsageError with every mistake."""
    if not path.is_file():
        return ()
    if mistakes := alarm_mistakes(path):
        raise UsageError(f"{path}: {counted(len(mistakes), 'mistake')}", details=mistakes, hint=_HINT)
    return tuple(_alarm(name, row) for name, row in read_yaml(path, _HINT).items())


def _mistakes(document: Any) -> Iterator[Mistake]:
    if not isinstance(document, dict):
        yield Mistake("(whole file)", f"expected {_GRAMMAR.expected}")
        return
    yield from _GRAMMAR.check(document, "")
    own = _own_names()
    for name, row in document.items():
        if name in own:
            yield Mistake(str(name), "gpu-ami has an alarm of this name: rename it")
        if isinstance(row, dict):
            yield from _ROW.missing(row, str(name))
            yield from _compared(str(name), row)


def _compared(name: str, row: Mapping[str, Any]) -> Iterator[Mistake]:
    if ("logs" in row) == ("metric" in row):
        yield Mistake(
            name, "expected either logs (group, pattern) or metric (namespace, name, statistic, above or below)"
        )
    metric = row.get("metric")
    if isinstance(metric, dict) and ("above" in metric) == ("below" in metric):
        yield Mistake(f"{name}.metric", "expected either above or below: the limit that raises the alarm")


def _own_names() -> set[str]:
    table = read_yaml(data_dir("variables", "alarms.yml"), "it belongs to gpu-ami: reinstall it")
    return {name for kind in table.values() for name in kind}


def _alarm(name: str, row: Mapping[str, Any]) -> SiteAlarm:
    texts = {key: row.get(key, "") for key in ("title", "urgency", "meaning", "first", "support", "source")}
    logs = LoggedLines(**row["logs"]) if "logs" in row else None
    metric = WatchedMetric(**row["metric"]) if "metric" in row else None
    return SiteAlarm(name=name, commands=tuple(row.get("commands", ())), logs=logs, metric=metric, **texts)
