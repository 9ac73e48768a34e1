"""Evaluates an alarm at a moment: retrieves its datapoints, compares them, and says why the state is what it is.

Reasons and their data have the form that DescribeAlarmHistory of CloudWatch shows.

Decides an alarm's state from its datapoints, where some may be missing.

Source: CloudWatch user guide, "Configuring how CloudWatch alarms treat missing data" with its two tables, and "Avoiding
premature transitions to alarm state"; read 2026-11-23.

Datapoints of a metric, one a period, as an alarm retrieves them.

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
import operator
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from moto.cloudwatch.models import (
    Alarm,
    CloudWatchBackend,
    MetricAggregatedDatum,
    MetricDataQuery,
    MetricDatum,
    MetricDatumBase,
)

from localregion import backends
from localregion.alarms import metric_math
from localregion.alarms.metric_math import Series, Unsupported

OK, ALARM, INSUFFICIENT_DATA = "OK", "ALARM", "INSUFFICIENT_DATA"
BREACHING, NOT_BREACHING, IGNORE, MISSING = "breaching", "notBreaching", "ignore", "missing"
TREATMENTS = (BREACHING, NOT_BREACHING, IGNORE, MISSING)
_PERCENTILE = re.compile(r"p(\d{1,2}(?:\.\d{1,10})?|100)")


@dataclass(frozen=True)
class Rule:
    """periods: N; to_alarm: M, datapoints of the N that must breach; missing: how a missing datapoint is treated."""

    periods: int
    to_alarm: int
    missing: str = MISSING


@dataclass(frozen=True)
class Decision:
    """state: None keeps the alarm's; evaluated: positions of the datapoints that were compared; filled: how many
    missing datapoints were compared beside them."""

    state: str | None
    evaluated: Sequence[int]
    filled: int


def decide(breaches: Sequence[bool | None], rule: Rule) -> Decision:
    """breaches: the evaluation range, oldest first; None is a missing datapoint."""
    existing = [position for position, breach in enumerate(breaches) if breach is not None]
    evaluated = existing[-rule.periods :]
    count = sum(bool(breaches[position]) for position in evaluated)
    filled = rule.periods - len(evaluated)
    if not filled:
        return Decision(_compared(count, rule), evaluated, 0)
    if rule.missing in (BREACHING, NOT_BREACHING):
        count += filled if rule.missing == BREACHING else 0
        return Decision(_compared(count, rule), evaluated, filled)
    return Decision(_with_gaps(breaches, count, rule), evaluated, filled)


def _compared(count: int, rule: Rule) -> str:
    return ALARM if count >= rule.to_alarm else OK


def _with_gaps(breaches: Sequence[bool | None], count: int, rule: Rule) -> str | None:
    """Too few datapoints, and the missing ones count neither way.

    A few datapoints that all breach are no alarm until the oldest is as old as M (`- - - - X`): the state stays.
    """
    if count >= rule.to_alarm:
        return ALARM
    if False in breaches:
        return OK
    if rule.missing == IGNORE:
        return None
    if True not in breaches:
        return INSUFFICIENT_DATA
    return ALARM if len(breaches) - breaches.index(True) >= rule.to_alarm else None


# CloudWatch retrieves more datapoints than it needs, and does not say how many; in the user guide's examples two more.
EXTRA_PERIODS = 2
_COMPARISONS: dict[str, tuple[Callable[[float, float], bool], str]] = {
    "GreaterThanOrEqualToThreshold": (operator.ge, "greater than or equal to"),
    "GreaterThanThreshold": (operator.gt, "greater than"),
    "LessThanThreshold": (operator.lt, "less than"),
    "LessThanOrEqualToThreshold": (operator.le, "less than or equal to"),
}
_TREATED_AS = {ALARM: "Breaching", OK: "NonBreaching"}


@dataclass(frozen=True)
class Outcome:
    """Of a time series. state: None keeps the one it has; labels: of a contributor, else ()."""

    labels: Labels
    state: str | None
    reason: str
    data: dict[str, Any]


def check(alarm: Alarm) -> None:
    """Unsupported: the alarm uses what is not evaluated here, and would stay silent."""
    if alarm.rule is not None:
        raise Unsupported("a composite alarm")
    if alarm.comparison_operator not in _COMPARISONS:
        raise Unsupported(f"the comparison operator {alarm.comparison_operator}")
    if (alarm.treat_missing_data or MISSING) not in TREATMENTS:
        raise Unsupported(f"TreatMissingData {alarm.treat_missing_data}")
    for query in alarm.metric_data_queries:
        if query.metric_stat:
            check_statistic(query.metric_stat.stat)
    if not alarm.metric_data_queries:
        check_statistic(alarm.statistic or alarm.extended_statistic or "")
        return
    watched = _watched(alarm)
    if watched.expression and _is_query(watched.expression):
        parse_query(watched.expression)
    elif watched.expression:
        _expressions(alarm)
    _period(alarm)


def evaluate(backend: CloudWatchBackend, alarm: Alarm, now: datetime.datetime) -> list[Outcome]:
    """What each time series says at the minute in which `now` is: one, or the contributors of a query."""
    periods = int(alarm.evaluation_periods)
    end = now.replace(second=0, microsecond=0)
    within = EvaluationRange(end, _period(alarm), periods + EXTRA_PERIODS)
    watched = _watched(alarm) if alarm.metric_data_queries else None
    if watched and watched.expression and _is_query(watched.expression):
        query = parse_query(watched.expression)
        found = contributors(query, backends.metric_series(backend, query.namespace, query.metric), within)
        series = found if query.group else {(): found.get((), {})}
        return [_outcome(alarm, labels, values, within, now) for labels, values in series.items()]
    return [_outcome(alarm, (), _values(backend, alarm, within), within, now)]


def is_grouped(alarm: Alarm) -> bool:
    """Whether the alarm has contributors, each with a state of its own."""
    watched = _watched(alarm) if alarm.metric_data_queries else None
    text = watched.expression if watched else None
    return bool(text and _is_query(text) and parse_query(text).group)


def _is_query(expression: str) -> bool:
    return expression.lstrip().upper().startswith("SELECT")


def _watched(alarm: Alarm) -> MetricDataQuery:
    """The query whose result the alarm compares: the one that returns data."""
    watched = [query for query in alarm.metric_data_queries if str(query.return_data).lower() != "false"]
    if len(watched) != 1:
        raise Unsupported(f"{len(watched)} queries with ReturnData; exactly one must have it")
    return watched[0]


def _period(alarm: Alarm) -> int:
    stats = [query.metric_stat for query in alarm.metric_data_queries if query.metric_stat]
    own = [query.period for query in alarm.metric_data_queries if query.period]
    given = {int(stat.period) for stat in stats} | {int(period) for period in own} or {int(alarm.period)}
    if len(given) != 1:
        raise Unsupported(f"metrics with different periods {sorted(given)}")
    return given.pop()


def _expressions(alarm: Alarm) -> dict[str, metric_math.Expression]:
    queries = [query for query in alarm.metric_data_queries if query.expression]
    ids = frozenset(query.id for query in alarm.metric_data_queries if query.metric_stat)
    return {query.id: metric_math.compiled(str(query.expression), ids) for query in queries}


def _values(backend: CloudWatchBackend, alarm: Alarm, within: EvaluationRange) -> Series:
    if not alarm.metric_data_queries:
        dimensions = [{"Name": str(each.name), "Value": str(each.value)} for each in alarm.dimensions]
        metric = {"Namespace": alarm.namespace, "MetricName": alarm.metric_name, "Dimensions": dimensions}
        statistic = alarm.statistic or str(alarm.extended_statistic)
        return datapoints(backends.metric_data(backend, metric), statistic, within, alarm.unit)
    given = {query.id: _of_query(backend, query, within) for query in alarm.metric_data_queries if query.metric_stat}
    watched = _watched(alarm)
    if watched.metric_stat:
        return given[watched.id]
    result = _expressions(alarm)[watched.id](given, within.count)
    return result if isinstance(result, dict) else dict.fromkeys(range(within.count), result)


def _of_query(backend: CloudWatchBackend, query: MetricDataQuery, within: EvaluationRange) -> Series:
    stat = query.metric_stat
    assert stat
    dimensions = [{"Name": str(each.name), "Value": str(each.value)} for each in stat.metric.dimensions]
    metric = {"Namespace": stat.metric.namespace, "MetricName": stat.metric.metric_name, "Dimensions": dimensions}
    return datapoints(backends.metric_data(backend, metric), stat.stat, within, stat.unit or None)


def _outcome(alarm: Alarm, labels: Labels, values: Series, within: EvaluationRange, now: datetime.datetime) -> Outcome:
    compare, _ = _COMPARISONS[alarm.comparison_operator]
    threshold, periods = float(alarm.threshold), int(alarm.evaluation_periods)
    breaches = [
        compare(values[position], threshold) if position in values else None for position in range(within.count)
    ]
    to_alarm = int(alarm.datapoints_to_alarm or periods)
    decision = decide(breaches, Rule(periods, to_alarm, alarm.treat_missing_data or MISSING))
    reason = _reason(alarm, decision, values, breaches, within)
    return Outcome(labels, decision.state, reason, _data(alarm, decision, values, within, now))


def _reason(
    alarm: Alarm, decision: Decision, values: Series, breaches: Sequence[bool | None], within: EvaluationRange
) -> str:
    """`Threshold Crossed: 1 datapoint [1.0 (13/08/25 08:07:00)] was greater than or equal to the threshold (1.0).`"""
    if decision.state == INSUFFICIENT_DATA:
        return f"Insufficient Data: {_counted(decision.filled, 'was', 'were')} unknown."
    if decision.state is None:
        return ""
    treated = _missing_counted(decision.filled, _TREATED_AS.get(decision.state, ""))
    if not decision.evaluated:
        periods = f"{decision.filled} period{'' if decision.filled == 1 else 's'}"
        return f"Threshold Crossed: no datapoints were received for {periods} and {treated}."
    wanted = decision.state == ALARM
    shown = [place for place in reversed(decision.evaluated) if breaches[place] is wanted] or decision.evaluated
    listed = ", ".join(f"{values[place]} ({within.time(place):%d/%m/%y %H:%M:%S})" for place in shown)
    _, phrase = _COMPARISONS[alarm.comparison_operator]
    compared = f"{phrase} the threshold ({float(alarm.threshold)})"
    verb = ("was" if len(shown) == 1 else "were") + ("" if wanted else " not")
    count = f"{len(shown)} datapoint{'' if len(shown) == 1 else 's'}"
    least = ""
    if alarm.datapoints_to_alarm:
        count = f"{len(shown)} out of the last {int(alarm.evaluation_periods)} datapoints"
        least = f" (minimum {_minimum(alarm, wanted)} transition)"
    also = f" and {treated}" if decision.filled else ""
    return f"Threshold Crossed: {count} [{listed}] {verb} {compared}{also}{least}."


def _minimum(alarm: Alarm, into_alarm: bool) -> str:
    to_alarm, periods = int(alarm.datapoints_to_alarm or 0), int(alarm.evaluation_periods)
    least = to_alarm if into_alarm else periods - to_alarm + 1
    return f"{least} datapoint{'' if least == 1 else 's'} for {'OK -> ALARM' if into_alarm else 'ALARM -> OK'}"


def _counted(number: int, one: str, several: str) -> str:
    return f"{number} datapoint {one}" if number == 1 else f"{number} datapoints {several}"


def _missing_counted(number: int, kind: str) -> str:
    return f"{number} missing datapoint{' was' if number == 1 else 's were'} treated as [{kind}]"


def _data(
    alarm: Alarm, decision: Decision, values: Series, within: EvaluationRange, now: datetime.datetime
) -> dict[str, Any]:
    evaluated = [{"timestamp": stamp(within.time(place)), "value": values[place]} for place in decision.evaluated]
    statistic = {"statistic": alarm.statistic} if alarm.statistic else {}
    return {
        "version": "1.0",
        "queryDate": stamp(now),
        "startDate": stamp(within.time(decision.evaluated[0]) if decision.evaluated else within.start),
        **statistic,
        "period": within.period,
        "recentDatapoints": [values[place] for place in decision.evaluated],
        "threshold": float(alarm.threshold),
        "evaluatedDatapoints": evaluated[::-1],
    }


def stamp(time: datetime.datetime) -> str:
    """2026-11-23T06:00:00.000+0000: the form in state reasons and in messages."""
    return f"{time:%Y-%m-%dT%H:%M:%S}.{time.microsecond // 1000:03d}+0000"


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


def datapoints(
    data: Iterable[MetricDatumBase], statistic: str, within: EvaluationRange, unit: str | None = None
) -> Series:
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


def parse_query(text: str) -> Query:
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
    made = {labels: datapoints(data, query.statistic, within) for labels, data in grouped.items()}
    return {labels: values for labels, values in made.items() if values}
