"""Evaluates an alarm at a moment: retrieves its datapoints, compares them, and says why the state is what it is.

Reasons and their data have the form that DescribeAlarmHistory of CloudWatch shows.

Decides an alarm's state from its datapoints, where some may be missing.

Source: CloudWatch user guide, "Configuring how CloudWatch alarms treat missing data" with its two tables, and "Avoiding
premature transitions to alarm state"; read 2026-11-23.
"""

from __future__ import annotations

import datetime
import operator
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from moto.cloudwatch.models import Alarm, CloudWatchBackend, MetricDataQuery

from localregion import backends
from localregion.alarms import datapoints, metric_math
from localregion.alarms.datapoints import EvaluationRange, Labels
from localregion.alarms.metric_math import Series, Unsupported

OK, ALARM, INSUFFICIENT_DATA = "OK", "ALARM", "INSUFFICIENT_DATA"
BREACHING, NOT_BREACHING, IGNORE, MISSING = "breaching", "notBreaching", "ignore", "missing"
TREATMENTS = (BREACHING, NOT_BREACHING, IGNORE, MISSING)


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
            datapoints.check_statistic(query.metric_stat.stat)
    if not alarm.metric_data_queries:
        datapoints.check_statistic(alarm.statistic or alarm.extended_statistic or "")
        return
    watched = _watched(alarm)
    if watched.expression and _is_query(watched.expression):
        datapoints.parse(watched.expression)
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
        query = datapoints.parse(watched.expression)
        found = datapoints.contributors(query, backends.metric_series(backend, query.namespace, query.metric), within)
        series = found if query.group else {(): found.get((), {})}
        return [_outcome(alarm, labels, values, within, now) for labels, values in series.items()]
    return [_outcome(alarm, (), _values(backend, alarm, within), within, now)]


def is_grouped(alarm: Alarm) -> bool:
    """Whether the alarm has contributors, each with a state of its own."""
    watched = _watched(alarm) if alarm.metric_data_queries else None
    text = watched.expression if watched else None
    return bool(text and _is_query(text) and datapoints.parse(text).group)


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
        return datapoints.series(backends.metric_data(backend, metric), statistic, within, alarm.unit)
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
    return datapoints.series(backends.metric_data(backend, metric), stat.stat, within, stat.unit or None)


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
