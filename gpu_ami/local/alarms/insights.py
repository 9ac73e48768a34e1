"""Metrics Insights queries of alarms: SELECT, FROM, WHERE with = and !=, AND, GROUP BY, ORDER BY, LIMIT.

Source: CloudWatch user guide, "Metrics Insights query components and syntax" and "Create a CloudWatch alarm based on a
Metrics Insights query" (an alarm on several time series needs GROUP BY and ORDER BY); read 2026-11-23.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from moto.cloudwatch.models import MetricDatumBase

from gpu_ami.local.alarms.datapoints import EvaluationRange, series
from gpu_ami.local.alarms.metric_math import Series, Unsupported

_STATISTICS = {"AVG": "Average", "COUNT": "SampleCount", "MAX": "Maximum", "MIN": "Minimum", "SUM": "Sum"}
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
    if match is None or match["function"].upper() not in _STATISTICS:
        raise Unsupported(f"the Metrics Insights query {text}")
    if match["group"] and not match["order"]:
        raise Unsupported(f"GROUP BY without ORDER BY in {text}: an alarm on several time series needs both")
    schema = _names(match["schema"])
    return Query(
        _STATISTICS[match["function"].upper()], _names(match["metric"])[0], (schema or _names(match["namespace"]))[0],
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
