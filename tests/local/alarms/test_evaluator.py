"""Alarms from PutMetricData to the message in a queue, minute by minute."""

from __future__ import annotations

import datetime
import json
import threading
from typing import Any

import pytest

from gpu_ami.local.alarms import evaluator
from tests.local.alarms.conftest import Account


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

    monkeypatch.setattr(evaluator, "step", step)
    monkeypatch.setattr(evaluator, "_MINUTE", 0.01)
    evaluator.run(stop)
    assert len(steps) == 3
