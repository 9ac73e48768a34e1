"""The alarms of one instance: which there are, and what they compare."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import alarms, instance_alarms, templates
from gpu_ami.telemetry.measurements import measured
from localregion import backends

PLAN = make_plan(find_recipe(Path("al2023-any-gpu")), Place(name="aws", region="us-east-1")).document
TARGET = instance_alarms.Target("i-1", {"page": "arn:p", "ticket": "arn:t"}, 1, 700, "s")


@pytest.fixture
def aws() -> Iterator[Any]:
    backends.install()
    with mock_aws():
        yield lambda service: boto3.client(service, region_name="us-east-1")


def test_each_alarm_of_the_table_is_made() -> None:
    made = instance_alarms.resources(measured(PLAN), TARGET)
    assert list(made) == [instance_alarms.logical_id(alarm.name) for alarm in alarms.of_kind(alarms.INSTANCE)]
    pages = {name for name, one in made.items() if one["Properties"]["AlarmActions"] == ["arn:p"]}
    assert pages == {"AgentSilent", "EventParserSilent", "GpuMetricsMissing", "GpuSeriesMissing", "GpuUnknownAfterBoot"}


def test_clocks_are_compared_only_where_they_are_measured() -> None:
    plan = {**PLAN, "telemetry": {**PLAN["telemetry"], "measurements": ["memory_total"]}}
    made = instance_alarms.resources(measured(plan), TARGET)  # type: ignore[arg-type]
    assert "GpuClocksThrottled" not in made and len(made) == 7


@pytest.mark.parametrize(
    ("interval", "window"),
    [
        (10, (60, 10, 7)),
        (60, (60, 10, 7)),
        (45, (180, 4, 4)),
        (120, (120, 5, 4)),
        (31, (300, 4, 4)),
        (700, (900, 4, 4)),
    ],
)
def test_more_periods_must_be_short_than_are_at_a_boot(interval: int, window: tuple[int, int, int]) -> None:
    made = instance_alarms.sample_window(interval)
    assert (made.period, made.periods, made.to_alarm) == window


@pytest.mark.parametrize("interval", [1, 7, 10, 15, 30, 31, 45, 60, 90, 120, 300])
@pytest.mark.parametrize("gpus", [2, 4, 8])
def test_one_missing_gpu_is_below_the_threshold_and_none_is_not(gpus: int, interval: int) -> None:
    """A period that does not hold whole samples has one more in some windows than in others."""
    fewest, period = instance_alarms.fewest_samples(gpus, interval), instance_alarms.sample_window(interval).period
    assert (gpus - 1) * -(-period // interval) < fewest <= gpus * (period // interval)


def test_stack_of_an_instance_has_the_limits_of_its_type(aws: Any) -> None:
    given = {
        "InstanceId": "i-0123456789abcdef0", "InstanceType": "p5.48xlarge",
        "PageTopicArn": "arn:aws:sns:us-east-1:1:p", "TicketTopicArn": "arn:aws:sns:us-east-1:1:t",
    }  # fmt: skip
    cloudformation = aws("cloudformation")
    body = templates.render(PLAN, "us-east-1")["instance-alarms.yml"]
    parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()]
    cloudformation.create_stack(StackName="i", TemplateBody=body, Parameters=parameters)
    made = {one["AlarmName"]: one for one in aws("cloudwatch").describe_alarms()["MetricAlarms"]}
    assert len(made) == 8
    assert made["i-gpu-series-missing"]["Threshold"] == 8.0
    assert made["i-agent-silent"]["TreatMissingData"] == "breaching"
    clock = next(one for one in made["i-gpu-clocks-throttled"]["Metrics"] if one["Id"] == "result")
    assert clock["Expression"] == "IF(busy >= 90 AND clock <= 990, 1, 0)"
    dimensions = {
        (each["Name"], each["Value"])
        for one in made.values() for metric in one["Metrics"] if "MetricStat" in metric
        for each in metric["MetricStat"]["Metric"]["Dimensions"]
    }  # fmt: skip
    assert dimensions == {("InstanceId", given["InstanceId"])}
    cloudformation.delete_stack(StackName="i")
    assert aws("cloudwatch").describe_alarms()["MetricAlarms"] == []
