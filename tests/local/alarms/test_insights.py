"""Metrics Insights queries, and alarms with a contributor for each instance."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from gpu_ami.local.alarms import datapoints
from gpu_ami.local.alarms.metric_math import Unsupported
from tests.local.alarms.conftest import Account

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
    query = datapoints.parse(text)
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
        datapoints.parse(text)
