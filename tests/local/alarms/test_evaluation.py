"""An alarm from datapoints to its message: statistics, missing data, states, actions."""

from __future__ import annotations

import datetime
import json
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.cloudwatch.models import MetricAggregatedDatum, MetricDatum

from gpu_ami.local.alarms import datapoints, notifications
from gpu_ami.local.alarms.metric_math import Unsupported
from gpu_ami.local.alarms.missing_data import ALARM, INSUFFICIENT_DATA, OK, TREATMENTS, Decision, Rule, decide
from tests.local.alarms.conftest import Account

# What an alarm retrieves: one period, one query that it watches.


def query(name: str, period: int, *, returned: bool) -> dict[str, Any]:
    stat = {"Metric": {"Namespace": "n", "MetricName": name}, "Period": period, "Stat": "Sum"}
    return {"Id": name, "ReturnData": returned, "MetricStat": stat}


def test_metric_without_an_expression_is_watched(aws: Account) -> None:
    aws.alarm(Metrics=[query("m", 60, returned=True)])
    aws.put(1.0)
    assert aws.step() == [("a", "ALARM")]


@pytest.mark.parametrize(
    ("second", "named"),
    [(query("o", 300, returned=False), "different periods"), (query("o", 60, returned=True), "2 queries")],
)
def test_queries_that_do_not_make_one_time_series_are_refused(aws: Account, second: Any, named: str) -> None:
    with pytest.raises(ClientError, match=named):
        aws.alarm(Metrics=[query("m", 60, returned=True), second])


def test_evaluation_range_has_two_more_periods(aws: Account) -> None:
    """The newest datapoints that exist decide: a breach is seen until it has left the range."""
    aws.alarm(TreatMissingData="notBreaching")
    aws.put(1.0)
    assert [aws.step() for _ in range(4)] == [[("a", "ALARM")], [], [], [("a", "OK")]]


def test_constant_expression_has_a_datapoint_in_each_period(aws: Account) -> None:
    expression = {"Id": "e", "Expression": "1 + 1", "ReturnData": True}
    aws.alarm(Metrics=[expression, query("m", 60, returned=False)])
    assert aws.step() == [("a", "ALARM")]


# Actions of states; history is in test_api, contributors are in test_insights.


def test_each_state_has_its_own_actions(aws: Account) -> None:
    aws.alarm(AlarmActions=[], OKActions=[], InsufficientDataActions=[aws.topic])
    for value in (0.0, 1.0):
        aws.put(value)
        aws.step()
    assert aws.messages() == []
    aws.step(3)
    [message] = aws.messages()
    assert (message["OldStateValue"], message["NewStateValue"]) == ("ALARM", "INSUFFICIENT_DATA")


def test_action_is_not_repeated_while_the_state_lasts(aws: Account) -> None:
    aws.alarm()
    for _ in range(3):
        aws.put(1.0)
        aws.step()
    assert len(aws.messages()) == 1


def test_history_of_a_change_has_both_states(aws: Account) -> None:
    aws.alarm()
    aws.put(1.0)
    aws.step()
    [item] = aws("cloudwatch").describe_alarm_history(HistoryItemType="StateUpdate")["AlarmHistoryItems"]
    data = json.loads(item["HistoryData"])
    assert data["oldState"]["stateValue"] == "INSUFFICIENT_DATA"
    assert data["newState"]["stateReasonData"]["recentDatapoints"] == [1.0]


# Subject and message of a notification; the message of a metric alarm is in test_evaluator.


@pytest.mark.parametrize(
    ("region", "title"),
    [("us-east-1", "US East (N. Virginia)"), ("eu-central-1", "Europe (Frankfurt)"), ("x-1", "x-1")],
)
def test_region_has_the_name_of_the_console(region: str, title: str) -> None:
    assert notifications.region_title(region) == title


def test_long_subject_is_cut(aws: Account) -> None:
    aws.alarm(AlarmName="a" * 200)
    aws.put(1.0)
    aws.step()
    [message] = aws.messages()
    assert len(message["Subject"]) == notifications.SUBJECT_CHARACTERS


def test_percentile_alarm_names_its_extended_statistic(aws: Account) -> None:
    aws.alarm(ExtendedStatistic="p99", Statistic=None, DatapointsToAlarm=1)
    aws.put(1.0)
    aws.step()
    [message] = aws.messages()
    trigger = message["Trigger"]
    assert (trigger["StatisticType"], trigger["ExtendedStatistic"]) == ("ExtendedStatistic", "p99")
    assert trigger["DatapointsToAlarm"] == 1


def test_contributor_has_one_id() -> None:
    first, second = (("I", "i-1"),), (("I", "i-2"),)
    assert notifications.contributor_id(first) == notifications.contributor_id(first)
    assert len({notifications.contributor_id(first), notifications.contributor_id(second)}) == 2


# Statistics by period.


END = datetime.datetime(2026, 11, 23, 6, 0)
RANGE = datapoints.EvaluationRange(END, 300, 3)


def value(number: float, minutes_before: float, unit: str = "None") -> MetricDatum:
    return MetricDatum("n", "m", number, [], END - datetime.timedelta(minutes=minutes_before), unit)


def test_datum_belongs_to_the_period_that_begins_at_its_time() -> None:
    data = [value(1, 15.5), value(2, 15), value(3, 10), value(4, 5.1), value(5, 0)]
    assert datapoints.series(data, "Sum", RANGE) == {0: 2, 1: 7}
    assert RANGE.time(1) == datetime.datetime(2026, 11, 23, 5, 50)


def test_time_with_a_zone_is_the_same_moment() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=5))
    assert RANGE.position(END.replace(tzinfo=datetime.UTC).astimezone(zone) - datetime.timedelta(minutes=1)) == 2


def test_other_units_are_other_data() -> None:
    assert datapoints.series([value(1, 1, "Count"), value(2, 1)], "Sum", RANGE, "Count") == {2: 1}


def test_statistic_sets_count_their_samples_and_have_no_percentile() -> None:
    many = MetricAggregatedDatum("n", "m", 1.0, 3.0, 4.0, 8.0, [], END - datetime.timedelta(minutes=1))
    one = MetricAggregatedDatum("n", "m", 7.0, 7.0, 2.0, 14.0, [], END - datetime.timedelta(minutes=1))
    assert datapoints.series([many, value(10, 1)], "SampleCount", RANGE) == {2: 5}
    assert datapoints.series([many, value(10, 1)], "Average", RANGE) == {2: 3.6}
    assert datapoints.series([many], "p50", RANGE) == {}
    assert datapoints.series([one, value(9, 1)], "p60", RANGE) == {2: 7}


@pytest.mark.parametrize("name", ["", "p101", "TM(10%:90%)", "sum"])
def test_other_statistics_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="the statistic"):
        datapoints.check_statistic(name)


# The tables of the CloudWatch user guide, "Configuring how CloudWatch alarms treat missing data".


KEPT = None
THREE_OF_THREE = [
    ("0-X-X", OK, OK, OK, OK),
    ("0----", OK, OK, OK, OK),
    ("-----", INSUFFICIENT_DATA, KEPT, ALARM, OK),
    ("0XX-X", ALARM, ALARM, ALARM, ALARM),
    ("--X--", ALARM, KEPT, ALARM, OK),
]
TWO_OF_THREE = [
    ("0-X-X", ALARM, ALARM, ALARM, ALARM),
    ("00X0X", ALARM, ALARM, ALARM, ALARM),
    ("0-X--", OK, OK, ALARM, OK),
    ("----0", OK, OK, ALARM, OK),
    ("---X-", ALARM, KEPT, ALARM, OK),
]
COLUMNS = ("missing", "ignore", "breaching", "notBreaching")


def decided(points: str, rule: Rule) -> Decision:
    return decide([{"0": False, "X": True, "-": None}[point] for point in points], rule)


@pytest.mark.parametrize(("to_alarm", "table"), [(3, THREE_OF_THREE), (2, TWO_OF_THREE)], ids=["3of3", "2of3"])
def test_states_are_those_of_the_tables(to_alarm: int, table: list[tuple[str | None, ...]]) -> None:
    assert set(COLUMNS) == set(TREATMENTS)
    got = [
        (points, *(decided(str(points), Rule(3, to_alarm, column)).state for column in COLUMNS)) for points, *_ in table
    ]
    assert got == table


@pytest.mark.parametrize(("points", "state"), [("----X", KEPT), ("---X-", KEPT), ("---X0", OK), ("--X-0", OK)])
def test_a_young_breach_is_no_alarm_yet(points: str, state: str | None) -> None:
    """ "Avoiding premature transitions to alarm state": 3 of 3."""
    assert decided(points, Rule(3, 3)).state == state


def test_decision_says_what_was_compared() -> None:
    assert decided("00X0X", Rule(3, 2)) == Decision(ALARM, [2, 3, 4], 0)
    assert decided("0-X--", Rule(3, 2, "breaching")) == Decision(ALARM, [0, 2], 1)
