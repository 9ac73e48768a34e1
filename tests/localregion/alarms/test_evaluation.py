"""An alarm from datapoints to its message: statistics, missing data, states, actions.

Alarms from PutMetricData to the message in a queue, minute by minute.

Metrics Insights queries, and alarms with a contributor for each instance.
"""

from __future__ import annotations

import datetime
import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from botocore.exceptions import ClientError
from moto.cloudwatch.models import MetricAggregatedDatum, MetricDatum

from localregion.alarms import evaluation, transitions
from localregion.alarms.evaluation import ALARM, INSUFFICIENT_DATA, OK, TREATMENTS, Decision, Rule, decide
from localregion.alarms.metric_math import Unsupported
from tests.localregion.alarms.conftest import Account

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
    assert transitions.region_title(region) == title


def test_long_subject_is_cut(aws: Account) -> None:
    aws.alarm(AlarmName="a" * 200)
    aws.put(1.0)
    aws.step()
    [message] = aws.messages()
    assert len(message["Subject"]) == transitions.SUBJECT_CHARACTERS


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
    assert transitions.contributor_id(first) == transitions.contributor_id(first)
    assert len({transitions.contributor_id(first), transitions.contributor_id(second)}) == 2


# Statistics by period.


END = datetime.datetime(2026, 11, 23, 6, 0)
RANGE = evaluation.EvaluationRange(END, 300, 3)


def value(number: float, minutes_before: float, unit: str = "None") -> MetricDatum:
    return MetricDatum("n", "m", number, [], END - datetime.timedelta(minutes=minutes_before), unit)


def test_datum_belongs_to_the_period_that_begins_at_its_time() -> None:
    data = [value(1, 15.5), value(2, 15), value(3, 10), value(4, 5.1), value(5, 0)]
    assert evaluation.datapoints(data, "Sum", RANGE) == {0: 2, 1: 7}
    assert RANGE.time(1) == datetime.datetime(2026, 11, 23, 5, 50)


def test_time_with_a_zone_is_the_same_moment() -> None:
    zone = datetime.timezone(datetime.timedelta(hours=5))
    assert RANGE.position(END.replace(tzinfo=datetime.UTC).astimezone(zone) - datetime.timedelta(minutes=1)) == 2


def test_other_units_are_other_data() -> None:
    assert evaluation.datapoints([value(1, 1, "Count"), value(2, 1)], "Sum", RANGE, "Count") == {2: 1}


def test_statistic_sets_count_their_samples_and_have_no_percentile() -> None:
    many = MetricAggregatedDatum("n", "m", 1.0, 3.0, 4.0, 8.0, [], END - datetime.timedelta(minutes=1))
    one = MetricAggregatedDatum("n", "m", 7.0, 7.0, 2.0, 14.0, [], END - datetime.timedelta(minutes=1))
    assert evaluation.datapoints([many, value(10, 1)], "SampleCount", RANGE) == {2: 5}
    assert evaluation.datapoints([many, value(10, 1)], "Average", RANGE) == {2: 3.6}
    assert evaluation.datapoints([many], "p50", RANGE) == {}
    assert evaluation.datapoints([one, value(9, 1)], "p60", RANGE) == {2: 7}


@pytest.mark.parametrize("name", ["", "p101", "TM(10%:90%)", "sum"])
def test_other_statistics_are_refused(name: str) -> None:
    with pytest.raises(Unsupported, match="the statistic"):
        evaluation.check_statistic(name)


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


def test_alarm_is_raised_and_ends_with_a_message_each(aws: Account) -> None:
    aws.alarm(AlarmDescription="text", TreatMissingData="notBreaching")
    assert aws.states() == {"a": "INSUFFICIENT_DATA"}
    assert aws.step() == [("a", "OK")]
    aws.put(2.0)
    assert aws.step() == [("a", "ALARM")] and aws.step() == []
    ok, alarm = aws.messages()
    assert ok["OldStateValue"] == "INSUFFICIENT_DATA"
    assert alarm["Subject"] == 'ALARM: "a" in US East (N. Virginia)'
    time = aws.now - datetime.timedelta(minutes=2)
    assert alarm["NewStateReason"] == (
        f"Threshold Crossed: 1 datapoint [2.0 ({time:%d/%m/%y %H:%M:%S})] was greater than or equal to "
        "the threshold (1.0)."
    )
    expected = {"AlarmDescription": "text", "NewStateValue": "ALARM", "OldStateValue": "OK"}
    assert {key: alarm[key] for key in expected} == expected
    assert alarm["Region"] == "US East (N. Virginia)"
    assert alarm["Trigger"] == {
        "MetricName": "m", "Namespace": "n", "StatisticType": "Statistic", "Statistic": "SUM", "Unit": None,
        "Dimensions": [], "Period": 60, "EvaluationPeriods": 1, "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "Threshold": 1.0, "TreatMissingData": "notBreaching", "EvaluateLowSampleCountPercentile": "",
    }  # fmt: skip
    aws.put(0.0)
    assert aws.step() == [("a", "OK")]
    assert [one["NewStateValue"] for one in aws.messages()] == ["OK"]


def test_reason_data_says_what_was_evaluated(aws: Account) -> None:
    aws.alarm()
    aws.put(2.0)
    aws.step()
    [alarm] = aws("cloudwatch").describe_alarms()["MetricAlarms"]
    data = json.loads(alarm["StateReasonData"])
    assert (data["statistic"], data["period"], data["recentDatapoints"], data["threshold"]) == ("Sum", 60, [2.0], 1.0)
    assert data["evaluatedDatapoints"][0]["value"] == 2.0


@pytest.mark.parametrize(
    ("missing", "state", "reason"),
    [
        (
            "breaching", "ALARM",
            "no datapoints were received for 2 periods and 2 missing datapoints were treated as [Breaching]",
        ),
        ("notBreaching", "OK", "and 1 missing datapoint was treated as [NonBreaching]"),
        ("missing", "INSUFFICIENT_DATA", "Insufficient Data: 2 datapoints were unknown."),
        ("ignore", "OK", "was not greater than or equal to"),
    ],
)  # fmt: skip
def test_data_that_ends_is_treated_as_the_alarm_says(aws: Account, missing: str, state: str, reason: str) -> None:
    aws.alarm(EvaluationPeriods=2, TreatMissingData=missing)
    for _ in range(2):
        aws.put(0.0)
        aws.step()
    assert aws.states() == {"a": "OK"}
    aws.step(5)
    [alarm] = aws("cloudwatch").describe_alarms()["MetricAlarms"]
    assert (alarm["StateValue"], reason in alarm["StateReason"]) == (state, True), alarm["StateReason"]


def test_m_of_n_needs_m_datapoints(aws: Account) -> None:
    aws.alarm(EvaluationPeriods=3, DatapointsToAlarm=2, Statistic="Maximum")
    for value in (0, 5, 0, 0):
        aws.put(value)
        aws.step()
    assert aws.states() == {"a": "OK"}
    for value in (5, 0, 5):
        aws.put(value)
        aws.step()
    [alarm] = aws("cloudwatch").describe_alarms()["MetricAlarms"]
    assert alarm["StateValue"] == "ALARM"
    assert "2 out of the last 3 datapoints" in alarm["StateReason"]
    assert alarm["StateReason"].endswith("threshold (1.0) (minimum 2 datapoints for OK -> ALARM transition).")


@pytest.mark.parametrize(
    ("operator", "raising"),
    [
        ("GreaterThanOrEqualToThreshold", {5, 6}), ("GreaterThanThreshold", {6}),
        ("LessThanThreshold", {4}), ("LessThanOrEqualToThreshold", {4, 5}),
    ],
)  # fmt: skip
def test_each_comparison_is_evaluated(aws: Account, operator: str, raising: set[int]) -> None:
    aws.alarm(ComparisonOperator=operator, Threshold=5.0)
    red = set()
    for value in (4, 5, 6):
        aws.put(value)
        aws.step()
        red |= {value} if aws.states() == {"a": "ALARM"} else set()
    assert red == raising


@pytest.mark.parametrize(
    ("statistic", "value"),
    [
        ("Sum", 6.0), ("SampleCount", 3.0), ("Average", 2.0), ("Minimum", 1.0), ("Maximum", 3.0), ("p50", 2.0),
        ("p99", 3.0),
    ],
)  # fmt: skip
def test_each_statistic_is_evaluated(aws: Account, statistic: str, value: float) -> None:
    extended = statistic.startswith("p")
    named = {"ExtendedStatistic": statistic, "Statistic": None} if extended else {"Statistic": statistic}
    aws.alarm(**named)
    for one in (1.0, 2.0, 3.0):
        aws.put(one)
    aws.step()
    [alarm] = aws("cloudwatch").describe_alarms()["MetricAlarms"]
    assert f"[{value} (" in alarm["StateReason"]


def test_long_period_slides_by_minutes(aws: Account) -> None:
    """ "Alarm evaluation window": a period of five minutes ends at each minute, not at each fifth."""
    aws.alarm(Period=300, TreatMissingData="notBreaching")
    aws.put(1.0)
    assert aws.step() == [("a", "ALARM")]
    assert [aws.step() for _ in range(14)] == [[]] * 14
    assert aws.step() == [("a", "OK")]  # the range of three periods has passed


def test_math_of_two_metrics_is_compared(aws: Account) -> None:
    def stat(name: str) -> dict[str, Any]:
        metric = {"Namespace": "n", "MetricName": name, "Dimensions": [{"Name": "I", "Value": "1"}]}
        return {"Id": name, "ReturnData": False, "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}

    expression = {"Id": "e", "Expression": "IF(m > 1 AND o > 1, 1, 0)", "ReturnData": True}
    aws.alarm(Metrics=[expression, stat("m"), stat("o")])
    aws.put(2.0, I="1")
    aws.step()
    assert aws.states() == {"a": "OK"}
    aws.put(2.0, I="1")
    aws.put(2.0, name="o", I="1")
    assert aws.step() == [("a", "ALARM")]
    trigger = aws.messages()[-1]["Trigger"]
    assert trigger["Metrics"][0] == expression
    assert trigger["Metrics"][1]["MetricStat"]["Metric"]["Dimensions"] == [{"value": "1", "name": "I"}]


def test_disabled_actions_and_a_missing_topic_leave_the_state(aws: Account) -> None:
    aws.alarm(ActionsEnabled=False)
    aws.alarm(AlarmName="b", AlarmActions=["arn:aws:sns:us-east-1:123456789012:gone"])
    aws.put(1.0)
    assert sorted(aws.step()) == [("a", "ALARM"), ("b", "ALARM")]
    assert aws.messages() == []
    items = aws("cloudwatch").describe_alarm_history(HistoryItemType="Action")["AlarmHistoryItems"]
    assert [item["HistorySummary"].partition(" arn")[0] for item in items] == ["Failed to execute action"]


def test_thread_evaluates_at_the_next_minute(aws: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    """A failure in one minute does not end the thread."""
    stop, steps = threading.Event(), list[int]()

    def step() -> None:
        steps.append(1)
        if len(steps) == 3:
            stop.set()
        raise ValueError("broken datapoint")

    monkeypatch.setattr(transitions, "step", step)
    monkeypatch.setattr(transitions, "MINUTE", 0.01)
    transitions.run(stop)
    assert len(steps) == 3


EACH = "SELECT MAX(m) FROM n WHERE G = 'train' GROUP BY I ORDER BY MAX() DESC"


def watch(aws: Account, query: str = EACH) -> None:
    aws.alarm(
        Metrics=[{"Id": "q", "Expression": query, "Period": 60, "ReturnData": True}], TreatMissingData="notBreaching"
    )


@pytest.fixture
def fleet(aws: Account) -> Iterator[Account]:
    watch(aws)
    for instance, group in (("i-1", "train"), ("i-2", "train"), ("i-3", "other")):
        aws.put(0.0, I=instance, G=group)
    aws.step()
    aws.messages()
    yield aws


def test_each_instance_is_a_contributor_with_its_own_message(fleet: Account) -> None:
    fleet.put(1.0, I="i-1", G="train")
    fleet.put(0.0, I="i-2", G="train")
    fleet.put(9.0, I="i-3", G="other")
    fleet.put(9.0, G="train")
    fleet.step()
    assert fleet.states() == {"a": "ALARM"}
    [message] = fleet.messages()
    assert (message["NewStateValue"], message["AlarmContributorAttributes"]) == ("ALARM", {"I": "i-1"})
    [red] = fleet("cloudwatch").describe_alarm_contributors(AlarmName="a")["AlarmContributors"]
    assert red["ContributorAttributes"] == {"I": "i-1"} and "Threshold Crossed" in red["StateReason"]
    [alarm] = fleet("cloudwatch").describe_alarms()["MetricAlarms"]
    assert alarm["StateReason"] == "1 out of 2 time series evaluated to ALARM"
    fleet.put(1.0, I="i-2", G="train")
    fleet.put(0.0, I="i-1", G="train")
    fleet.step()
    assert {(m["NewStateValue"], m["AlarmContributorAttributes"]["I"]) for m in fleet.messages()} == {
        ("OK", "i-1"), ("ALARM", "i-2"),
    }  # fmt: skip


def test_instance_that_is_gone_is_no_contributor_any_more(fleet: Account) -> None:
    fleet.put(1.0, I="i-1", G="train")
    fleet.step()
    fleet.messages()
    fleet.step(3)
    assert fleet.states() == {"a": "OK"} and fleet.messages() == []


def test_query_without_groups_is_one_time_series(aws: Account) -> None:
    watch(aws, "SELECT COUNT(m) FROM SCHEMA(n, I)")
    for instance in ("i-1", "i-2"):
        aws.put(7.0, I=instance)
    aws.put(7.0, I="i-1", G="train")
    aws.step()
    [alarm] = aws("cloudwatch").describe_alarms()["MetricAlarms"]
    assert "[2.0 (" in alarm["StateReason"]


def test_query_without_groups_and_data_is_missing_data(aws: Account) -> None:
    metric = {"Id": "q", "Expression": "SELECT SUM(m) FROM n WHERE I = 'i-1'", "Period": 60, "ReturnData": True}
    aws.alarm(Metrics=[metric], TreatMissingData="breaching", ComparisonOperator="LessThanThreshold")
    aws.put(1.0, I="i-1")
    assert aws.step() == [("a", "OK")]
    assert aws.step(3) == [("a", "ALARM")]


def test_query_is_read() -> None:
    text = """select avg("x y") from "A/B" where I != 'i-1' and G='t' group by I, G order by avg() asc limit 5"""
    query = evaluation.parse_query(text)
    assert (query.statistic, query.metric, query.namespace, query.names) == ("Average", "x y", "A/B", None)
    assert query.conditions == [("I", False, "i-1"), ("G", True, "t")] and query.group == ["I", "G"]


@pytest.mark.parametrize(
    "text",
    [
        "SELECT MEDIAN(m) FROM n", "SELECT MAX(m)", "SELECT MAX(m) FROM n WHERE I LIKE 'i'",
        "SELECT MAX(m) FROM n GROUP BY I",
        "SELECT MAX(m) FROM n WHERE I = 'a' OR I = 'b'", "SELECT MAX(m), MIN(m) FROM n",
    ],
)  # fmt: skip
def test_other_queries_are_refused(text: str) -> None:
    with pytest.raises(Unsupported):
        evaluation.parse_query(text)
