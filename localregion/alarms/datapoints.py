"""Datapoints of a metric, one a period, as an alarm retrieves them.

An alarm is evaluated every minute whatever its period: its window slides ("Alarm evaluation window", SlidingWindow).
Percentiles: "Statistics definitions" of the CloudWatch user guide; of a statistic set there is one only where it holds
one value. Both read 2026-11-23.

Metrics Insights queries of alarms: SELECT, FROM, WHERE with = and !=, AND, GROUP BY, ORDER BY, LIMIT.

Source: CloudWatch user guide, "Metrics Insights query components and syntax" and "Create a CloudWatch alarm based on a
Metrics Insights query" (an alarm on several time series needs GROUP BY and ORDER BY); read 2026-11-23.
"""

from __future__ import annotations

import datetime
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from moto.cloudwatch.models import MetricAggregatedDatum, MetricDatum, MetricDatumBase

from localregion.alarms.metric_math import Series, Unsupported

_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,10})?|100)")


@dataclass(frozen=True)
class EvaluationRange:
    """The newest `count` periods (s each) before `end`; times are UTC without a zone, as moto's."""

    end: datetime.datetime
    period: int
    count: int

    @property
    def start(self) -> datetime.datetime:
        return self.end - datetime.timedelta(seconds=self.period * self.count)

    def time(self, position: int) -> datetime.datetime:
        """The beginning of a period, which is the timestamp of its datapoint."""
        return self.start + datetime.timedelta(seconds=self.period * position)

    def position(self, time: datetime.datetime) -> int | None:
        if time.tzinfo:
            time = time.astimezone(datetime.UTC).replace(tzinfo=None)
        if not self.start <= time < self.end:
            return None
        return int((time - self.start).total_seconds() // self.period)


@dataclass(frozen=True)
class Sample:
    """A value that was put, or a statistic set."""

    minimum: float
    maximum: float
    total: float
    count: float


def _percentile(rank: float, samples: Sequence[Sample]) -> float | None:
    """The smallest value that at least `rank` percent of the values do not exceed."""
    values = sorted((one.maximum, one.count) for one in samples if one.minimum == one.maximum)
    if len(values) < len(samples):
        return None
    needed, reached = math.ceil(rank / 100 * sum(count for _, count in values)), 0.0
    for value, count in values:
        reached += count
        if reached >= needed:
            return value
    return None


_STATISTICS: dict[str, Callable[[Sequence[Sample]], float]] = {
    "Sum": lambda samples: sum(one.total for one in samples),
    "SampleCount": lambda samples: sum(one.count for one in samples),
    "Minimum": lambda samples: min(one.minimum for one in samples),
    "Maximum": lambda samples: max(one.maximum for one in samples),
    "Average": lambda samples: sum(one.total for one in samples) / sum(one.count for one in samples),
}


def check_statistic(name: str) -> None:
    """Unsupported: neither a statistic nor a percentile."""
    if name not in _STATISTICS and not _PERCENTILE.fullmatch(name):
        raise Unsupported(f"the statistic {name}")


def series(data: Iterable[MetricDatumBase], statistic: str, within: EvaluationRange, unit: str | None = None) -> Series:
    """The statistic of each period that has data."""
    by_period: dict[int, list[Sample]] = {}
    for datum in data:
        position = within.position(datum.timestamp)
        if position is not None and unit in (None, datum.unit):
            by_period.setdefault(position, []).append(_sample(datum))
    computed = {position: _computed(statistic, samples) for position, samples in sorted(by_period.items())}
    return {position: value for position, value in computed.items() if value is not None}


def _computed(statistic: str, samples: Sequence[Sample]) -> float | None:
    percentile = _PERCENTILE.fullmatch(statistic)
    return _percentile(float(percentile[1]), samples) if percentile else _STATISTICS[statistic](samples)


def _sample(datum: MetricDatumBase) -> Sample:
    if isinstance(datum, MetricAggregatedDatum):
        return Sample(datum.min, datum.max, datum.sum, datum.sample_count)
    assert isinstance(datum, MetricDatum)
    return Sample(datum.value, datum.value, datum.value, 1.0)


_FUNCTIONS = {"AVG": "Average", "COUNT": "SampleCount", "MAX": "Maximum", "MIN": "Minimum", "SUM": "Sum"}
_NAME = r'(?:"[^"]+"|\w+)'
_QUERY = re.compile(
    rf"""\s*SELECT\s+(?P<function>\w+)\s*\(\s*(?P<metric>{_NAME})\s*\)
    \s+FROM\s+(?:SCHEMA\s*\(\s*(?P<schema>{_NAME}(?:\s*,\s*{_NAME})*)\s*\)|(?P<namespace>{_NAME}))
    (?:\s+WHERE\s+(?P<where>.+?))?
    (?:\s+GROUP\s+BY\s+(?P<group>{_NAME}(?:\s*,\s*{_NAME})*))?
    (?:\s+ORDER\s+BY\s+(?P<order>\w+)\s*\(\s*\)(?:\s+(?P<direction>ASC|DESC))?)?
    (?:\s+LIMIT\s+(?P<limit>\d+))?\s*""",
    re.IGNORECASE | re.VERBOSE | re.DOTALL,
)
_CONDITION = re.compile(rf"\s*({_NAME})\s*(=|!=)\s*'([^']*)'\s*")
Labels = tuple[tuple[str, str], ...]  # a contributor: names and values of GROUP BY
MetricSeries = tuple[Mapping[str, str], Sequence[MetricDatumBase]]  # dimensions and data of one metric


@dataclass(frozen=True)
class Query:
    """names: the dimensions that a metric must have exactly (SCHEMA); None where any will do."""

    statistic: str
    metric: str
    namespace: str
    names: frozenset[str] | None
    conditions: Sequence[tuple[str, bool, str]]
    group: Sequence[str]

    def matches(self, dimensions: Mapping[str, str]) -> bool:
        if self.names is not None and self.names != dimensions.keys():
            return False
        needed = [*self.group, *(name for name, _, _ in self.conditions)]
        if any(name not in dimensions for name in needed):
            return False
        return all((dimensions[name] == value) is equal for name, equal, value in self.conditions)


def parse(text: str) -> Query:
    """Unsupported: no query of this form."""
    match = _QUERY.fullmatch(text)
    if match is None or match["function"].upper() not in _FUNCTIONS:
        raise Unsupported(f"the Metrics Insights query {text}")
    if match["group"] and not match["order"]:
        raise Unsupported(f"GROUP BY without ORDER BY in {text}: an alarm on several time series needs both")
    schema = _names(match["schema"])
    return Query(
        _FUNCTIONS[match["function"].upper()], _names(match["metric"])[0], (schema or _names(match["namespace"]))[0],
        frozenset(schema[1:]) if schema else None, _conditions(match["where"] or "", text), _names(match["group"]),
    )  # fmt: skip


def _names(text: str | None) -> list[str]:
    return [name.strip('"') for name in re.findall(_NAME, text or "")]


def _conditions(text: str, query: str) -> list[tuple[str, bool, str]]:
    found = []
    for part in re.split(r"\s+AND\s+", text, flags=re.IGNORECASE) if text else []:
        match = _CONDITION.fullmatch(part)
        if match is None:
            raise Unsupported(f"the condition {part.strip()!r} in {query}")
        found.append((match[1].strip('"'), match[2] == "=", match[3]))
    return found


def contributors(query: Query, metrics: Iterable[MetricSeries], within: EvaluationRange) -> dict[Labels, Series]:
    """The time series of each group that has data in the range; a query without GROUP BY has one."""
    grouped: dict[Labels, list[MetricDatumBase]] = {}
    for dimensions, data in metrics:
        if query.matches(dimensions):
            grouped.setdefault(tuple((name, dimensions[name]) for name in query.group), []).extend(data)
    made = {labels: series(data, query.statistic, within) for labels, data in grouped.items()}
    return {labels: values for labels, values in made.items() if values}
