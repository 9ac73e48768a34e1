"""What an alarm retrieves: one period, one query that it watches."""

from __future__ import annotations

from typing import Any

import pytest
from botocore.exceptions import ClientError

from tests.local.alarms.conftest import Account


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
