"""The door to CloudWatch against moto: pages, exact dimensions, and what is not there."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from moto import mock_aws

from validator.cloudwatch import CloudWatch, Series

GROUP, STREAM = "/ec2/accelerated/accel-event-log", "i-0123456789abcdef0"


@pytest.fixture
def cloudwatch() -> Iterator[CloudWatch]:
    with mock_aws():
        yield CloudWatch("us-east-1")


def dimensions(**given: str) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(given.items()))


def put(name: str, value: float, **given: str) -> None:
    client = boto3.client("cloudwatch", "us-east-1")
    listed: Any = [{"Name": key, "Value": text} for key, text in given.items()]
    client.put_metric_data(Namespace="CWAgent", MetricData=[{"MetricName": name, "Value": value, "Dimensions": listed}])


def test_points_have_exact_dimensions(cloudwatch: CloudWatch) -> None:
    put("m", 5, index="0", InstanceId="i-1")
    put("m", 7, index="0", InstanceId="i-2")
    mine = Series("CWAgent", "m", dimensions(index="0", InstanceId="i-1"))
    other = Series("CWAgent", "m", dimensions(index="1", InstanceId="i-1"))
    found = cloudwatch.points([mine, other], time.time() - 60, 10)
    assert [point.value for point in found[mine]] == [5]
    assert found[other] == []
    assert cloudwatch.known_series("CWAgent", {"InstanceId": "i-1"}) == {mine}


def test_more_series_than_one_call_takes(cloudwatch: CloudWatch) -> None:
    put("m", 5, index="700")
    series = [Series("CWAgent", "m", dimensions(index=str(number))) for number in range(701)]
    found = cloudwatch.points(series, time.time() - 60, 60)
    assert [len(points) for points in found.values()] == [0] * 700 + [1]


def test_events_of_all_pages(cloudwatch: CloudWatch) -> None:
    assert cloudwatch.events(GROUP, STREAM) is None
    with pytest.raises(LookupError):
        cloudwatch.retention_days(GROUP)
    logs = boto3.client("logs", "us-east-1")
    logs.create_log_group(logGroupName=GROUP)
    logs.create_log_stream(logGroupName=GROUP, logStreamName=STREAM)
    assert cloudwatch.events(GROUP, STREAM) == []
    now = int(time.time() * 1000)
    for first in range(0, 12_000, 6_000):
        batch: Any = [{"timestamp": now + at, "message": f"line {at}"} for at in range(first, first + 6_000)]
        logs.put_log_events(logGroupName=GROUP, logStreamName=STREAM, logEvents=batch)
    found = cloudwatch.events(GROUP, STREAM) or []
    assert [event.message for event in found] == [f"line {at}" for at in range(12_000)]
    assert found[0].time == pytest.approx(now / 1000)
    assert cloudwatch.retention_days(GROUP) is None
    logs.put_retention_policy(logGroupName=GROUP, retentionInDays=90)
    assert cloudwatch.retention_days(GROUP) == 90


def test_waiting_polls_and_gives_up(cloudwatch: CloudWatch) -> None:
    slept: list[float] = []
    cloudwatch.sleep = slept.append
    cloudwatch.poll_seconds = 0.01
    answers = iter([None, None, "there"])
    assert cloudwatch.wait(lambda: next(answers), 10) == "there"
    assert slept == [0.01, 0.01]
    cloudwatch.sleep = time.sleep
    assert cloudwatch.wait(lambda: None, 0.03) is None
