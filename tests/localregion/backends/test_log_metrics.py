"""Metrics of log events: of filters with and without a default, and of embedded metric documents.

Filter patterns of JSON and other log events.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.exceptions import ClientError
from moto import mock_aws

from localregion import backends
from localregion.backends import logs

GROUP = {"logGroupName": "g"}
STREAM = GROUP | {"logStreamName": "s"}


@pytest.fixture
def aws() -> Iterator[Any]:
    backends.install()
    with mock_aws():
        logs = boto3.client("logs", region_name="us-east-1")
        logs.create_log_group(**GROUP)
        logs.create_log_stream(**STREAM)
        yield lambda service: boto3.client(service, region_name="us-east-1")


def put(aws: Any, *messages: str) -> None:
    events = [{"timestamp": int(time.time() * 1000), "message": message} for message in messages]
    aws("logs").put_log_events(**STREAM, logEvents=events)


def values(aws: Any, namespace: str, name: str, dimensions: dict[str, str] | None = None) -> list[float]:
    given = [{"Name": key, "Value": value} for key, value in (dimensions or {}).items()]
    metric = {"Namespace": namespace, "MetricName": name, "Dimensions": given}
    query = {"Id": "m", "MetricStat": {"Metric": metric, "Period": 60, "Stat": "Sum"}}
    answer = aws("cloudwatch").get_metric_data(
        MetricDataQueries=[query], StartTime=time.time() - 120, EndTime=time.time() + 60
    )
    return [sum(answer["MetricDataResults"][0]["Values"])] if answer["MetricDataResults"][0]["Values"] else []


@pytest.mark.parametrize(("default", "expected"), [({"defaultValue": 0.0}, [0.0]), ({}, [])])
def test_filter_counts_what_matches(aws: Any, default: dict[str, float], expected: list[float]) -> None:
    change = {"metricName": "m", "metricNamespace": "n", "metricValue": "1", **default}
    aws("logs").put_metric_filter(
        **GROUP, filterName="f", filterPattern="{ $.code = 79 }", metricTransformations=[change]
    )
    put(aws, '{"code": 48}', "no JSON")
    assert values(aws, "n", "m") == expected
    put(aws, '{"code": 79}', '{"code": 79}')
    assert values(aws, "n", "m") == [2.0]


@pytest.mark.parametrize(
    ("pattern", "change", "named"),
    [
        ('{ $.a = "x*" }', {}, "Invalid metric filter pattern: = with 'x*'"),
        ("{ $.a[0] = 1 }", {}, "Invalid metric filter pattern: cannot be read: [0] = 1"),
        ("", {"metricValue": "$.duration"}, "the metricValue $.duration"),
        ("", {"dimensions": {"I": "$.i"}}, "dimensions"),
    ],
)
def test_filter_that_is_not_evaluated_is_refused(aws: Any, pattern: str, change: dict[str, Any], named: str) -> None:
    transformation = {"metricName": "m", "metricNamespace": "n", "metricValue": "1", **change}
    with pytest.raises(ClientError) as refusal:
        aws("logs").put_metric_filter(
            **GROUP, filterName="f", filterPattern=pattern, metricTransformations=[transformation]
        )
    assert refusal.value.response["Error"]["Code"] == "InvalidParameterException"
    assert named in refusal.value.response["Error"]["Message"]
    assert aws("logs").describe_metric_filters()["metricFilters"] == []


def test_embedded_metrics_are_put_with_their_dimensions(aws: Any) -> None:
    directive = {"Namespace": "n", "Dimensions": [["I"], ["I", "S"]], "Metrics": [{"Name": "m", "Unit": "Count"}]}
    described = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}
    put(aws, json.dumps({"_aws": described, "I": "i-1", "S": "fatal", "m": 3}))
    assert values(aws, "n", "m", {"I": "i-1"}) == [3.0]
    assert values(aws, "n", "m", {"I": "i-1", "S": "fatal"}) == [3.0]
    assert values(aws, "n", "m") == []


def test_embedded_metric_with_several_values_puts_each(aws: Any) -> None:
    directive = {"Namespace": "n", "Dimensions": [["I"]], "Metrics": [{"Name": "m", "StorageResolution": 1}]}
    described = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}
    put(aws, json.dumps({"_aws": described, "I": "i-1", "m": [3, 4.5]}))
    assert values(aws, "n", "m", {"I": "i-1"}) == [7.5]


def test_series_is_found_whatever_the_order_of_its_dimensions(aws: Any) -> None:
    dimensions = {"Id": "i-1", "InstanceType": "g5.12xlarge", "EFAIndex": "0", "EFAName": "rdmap0s6", "EFADriver": "3"}
    directive = {"Namespace": "n", "Dimensions": [list(dimensions)], "Metrics": [{"Name": "m"}]}
    described = {"Timestamp": int(time.time() * 1000), "CloudWatchMetrics": [directive]}
    put(aws, json.dumps({"_aws": described, "m": 3, **dimensions}))
    assert values(aws, "n", "m", dict(sorted(dimensions.items()))) == [3.0]


EVENT = json.dumps({"origin": "kernel", "code": 79, "incident": {"root": 79}, "answered": True})


@pytest.mark.parametrize(
    ("pattern", "expected"),
    [
        ('{ $.origin = "kernel" }', True),
        ('{ $.origin = "userland" }', False),
        ('{ $.origin != "userland" }', True),
        ('{ $.missing != "x" }', False),
        ("{ $.code = 79 && $.incident.root = 79 }", True),
        ("{ $.code = 48 || $.code = 79 }", True),
        ('{ $.code = 79 || $.code = 48 && $.origin = "userland" }', True),
        ('{ ($.code = 79 || $.code = 48) && $.origin = "userland" }', False),
        ("{ $.answered = 1 }", False),
        ("{ $.code > 78 && $.code <= 79 }", True),
        ("{ $.code >= 80 || $.code < 79 }", False),
        ("{ $.origin > 1 }", False),
        ("{ $.origin != 1 }", False),
        ("", True),
        ("kernel code", True),
        ("kernel absent", False),
        ("?absent ?kernel", True),
        ("?absent ?missing", False),
        ("kernel -code", False),
        ('"origin: kernel"', False),
        ("-absent", True),
    ],
)
def test_pattern_is_evaluated(pattern: str, expected: bool) -> None:
    assert logs.matches(pattern, EVENT) is expected


@pytest.mark.parametrize("message", ["not JSON", "[]", ""])
def test_other_messages_match_nothing(message: str) -> None:
    assert not logs.matches("{ $.code = 79 }", message)


@pytest.mark.parametrize(
    "pattern",
    [
        "{ $.a }",
        "{ ($.a = 1 }",
        "{ $.a = 1 } x",
        "{ $.a = 1 $.b = 2 }",
        '{ $.a = "x*" }',
        '{ $.a > "x" }',
        "{ $.a[0] = 1 }",
        "{ $.a IS NULL }",
        "{ $.a NOT EXISTS }",
        "%AUTH%",
        "[a, b]",
        "a ?b",
        "a.b",
    ],
)
def test_what_is_not_evaluated_is_refused(pattern: str) -> None:
    with pytest.raises(ValueError):
        logs.matches(pattern, EVENT)
