"""CloudWatch metrics, where moto answers otherwise than AWS.

Delays reach the backends that show things late.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import astuple
from datetime import UTC, datetime, timedelta
from typing import Any

import boto3
import pytest
from botocore.config import Config
from moto.cloudwatch.models import MetricDatum

from localregion.backends import NO_DELAYS, Delays, cloudwatch, install, logs
from localregion.backends.cloudwatch import Kept


def test_metrics_of_an_entity_arrive_gzipped_or_not(endpoint: str) -> None:
    """The vendor's agent sends all its metrics so; moto alone answers 200 and keeps none of them."""
    packed = Config(retries={"total_max_attempts": 1}, request_min_compression_size_bytes=1)
    plain = Config(retries={"total_max_attempts": 1}, disable_request_compression=True)
    for name, config in (("packed", packed), ("plain", plain)):
        cloudwatch: Any = boto3.client(
            "cloudwatch", endpoint_url=endpoint, region_name="us-east-1", config=config,
            aws_access_key_id="local", aws_secret_access_key="local",
        )  # fmt: skip
        metric = {"MetricName": name, "Values": [41.0, 43.0], "Counts": [1.0, 1.0], "Timestamp": datetime.now(UTC)}
        own = {"Dimensions": [{"Name": "InstanceId", "Value": "i-1"}]}
        entity = {"KeyAttributes": {"Type": "Resource"}, "Attributes": {"PlatformType": "AWS::EC2"}}
        cloudwatch.put_metric_data(
            Namespace="CWAgent",
            MetricData=[metric],
            EntityMetricData=[{"Entity": entity, "MetricData": [metric | own]}],
        )
        kept = cloudwatch.list_metrics(Namespace="CWAgent", MetricName=name)["Metrics"]
        assert {len(one["Dimensions"]) for one in kept} == {0, 1}


def test_a_metric_is_found_in_its_own_namespace_alone(endpoint: str) -> None:
    """moto alone answers a query with dimensions from every namespace."""
    keys = {"aws_access_key_id": "local", "aws_secret_access_key": "local"}
    cloudwatch: Any = boto3.client("cloudwatch", endpoint_url=endpoint, region_name="us-east-1", **keys)
    now = datetime.now(UTC)
    dimensions = [{"Name": "InstanceId", "Value": "i-1"}, {"Name": "index", "Value": "0"}]
    for namespace, value, ago in (
        ("Elsewhere", 1.0, 5),
        ("CWAgent", 2.0, 15),
        ("CWAgent", 3.0, 5),
        ("CWAgent", 4.0, 11000),
    ):
        datum = {
            "MetricName": "power",
            "Value": value,
            "Dimensions": dimensions,
            "Timestamp": now - timedelta(seconds=ago),
        }
        cloudwatch.put_metric_data(Namespace=namespace, MetricData=[datum])

    def values(namespace: str, dimensions: list[dict[str, str]]) -> list[float]:
        metric = {"Namespace": namespace, "MetricName": "power", "Dimensions": dimensions}
        stat = {"Metric": metric, "Period": 10, "Stat": "Average"}
        asked = [{"Id": "a", "MetricStat": stat}]
        start = now - timedelta(seconds=60)
        found = cloudwatch.get_metric_data(
            MetricDataQueries=asked, StartTime=start, EndTime=now + timedelta(seconds=10)
        )
        return list(found["MetricDataResults"][0]["Values"])

    assert values("CWAgent", dimensions[::-1]) == [3.0, 2.0]
    assert values("Elsewhere", dimensions) == [1.0]
    assert values("Nowhere", dimensions) == values("CWAgent", dimensions[:1]) == values("CWAgent", []) == []
    for namespace, count in (("CWAgent", 1), ("Elsewhere", 1), ("Nowhere", 0)):
        listed = cloudwatch.list_metrics(Namespace=namespace, Dimensions=dimensions[:1])["Metrics"]
        assert [one["MetricName"] for one in listed] == ["power"] * count


def test_what_is_kept_has_an_end() -> None:
    kept = Kept()
    for hours in range(6):
        kept.append(MetricDatum("CWAgent", "power", hours, [], datetime(2026, 1, 1, hours, tzinfo=UTC)))
    assert [datum.value for datum in kept] == [2, 3, 4, 5]


@pytest.fixture(autouse=True)
def _reset() -> Iterator[None]:
    yield
    install()


def test_nothing_is_late_by_default() -> None:
    assert set(astuple(NO_DELAYS)) == {0.0}
    install()
    assert (cloudwatch.current_delays, logs.event_delay) == (NO_DELAYS, 0.0)


def test_delays_are_installed_in_metrics_and_logs() -> None:
    delays = Delays(metric_data=2.0, list_metrics=3.0, log_events=4.0)
    install(delays)
    assert (cloudwatch.current_delays, logs.event_delay) == (delays, 4.0)
