"""Alarms and dashboard of instances with Neuron devices, from neuron-monitor's report on."""

from __future__ import annotations

import datetime
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.cloud import Place
from gpu_ami.local import alarms as evaluation
from gpu_ami.local import backends
from gpu_ami.plan import make_plan
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import alarms, neuron, templates
from gpu_ami.telemetry.runbook import find_runbook
from tests.local.alarms.conftest import Account

PLAN = make_plan(find_recipe(Path("al2023-neuron")), Place(name="aws", region="us-east-1")).document
GROUP = "/ec2/accelerated/neuron-metrics"
FIRST, SECOND = "i-00000000000000001", "i-00000000000000002"
HEALTHY = {"reports": 1, "execution_errors_hardware": 0, "executions_timed_out": 0, "mem_ecc_uncorrected": 0}


@pytest.fixture
def aws() -> Iterator[Account]:
    """Both stacks; the topics lead to the queue."""
    backends.install()
    evaluation.install()
    with mock_aws():
        account = Account()
        texts = templates.render(PLAN, "us-east-1")
        cloudformation = account("cloudformation")
        cloudformation.create_stack(StackName="n", TemplateBody=texts["neuron-alarms.yml"])
        outputs = cloudformation.describe_stacks(StackName="n")["Stacks"][0]["Outputs"]
        for output in outputs:
            queue = "arn:aws:sqs:us-east-1:123456789012:q"
            account("sns").subscribe(TopicArn=output["OutputValue"], Protocol="sqs", Endpoint=queue)
        given = {"InstanceId": FIRST, "PageTopicArn": account.topic}
        parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()]
        cloudformation.create_stack(
            StackName="i", TemplateBody=texts["neuron-instance-alarm.yml"], Parameters=parameters
        )
        account("logs").create_log_group(logGroupName=GROUP)
        account("logs").create_log_stream(logGroupName=GROUP, logStreamName="s")
        yield account


def live(aws: Account, minutes: int, reports: dict[str, dict[str, float]]) -> list[tuple[str, str, str | None]]:
    """Each instance's metrics as embedded documents, as its publisher writes them."""
    for _ in range(minutes):
        when = (aws.now - datetime.timedelta(seconds=30)).replace(tzinfo=datetime.UTC)
        milliseconds = int(when.timestamp() * 1000)
        events = [
            {"timestamp": milliseconds, "message": document(instance, values, milliseconds)}
            for instance, values in reports.items()
        ]
        if events:
            aws("logs").put_log_events(logGroupName=GROUP, logStreamName="s", logEvents=events)
        aws.step()
    return [
        (one["AlarmName"], one["NewStateValue"], one.get("AlarmContributorAttributes", {}).get("instance_id"))
        for one in aws.messages()
    ]


def document(instance: str, values: dict[str, float], milliseconds: int) -> str:
    dimensions = {"instance_id": instance, "instance_type": "trn1.32xlarge"}
    directive = {
        "Namespace": "GpuAmi/Neuron", "Dimensions": [list(dimensions)], "Metrics": [{"Name": name} for name in values],
    }  # fmt: skip
    described = {"Timestamp": milliseconds, "CloudWatchMetrics": [directive]}
    return json.dumps({"_aws": described, **dimensions, **values})


@pytest.mark.parametrize(
    ("metric", "alarm"),
    [
        ("execution_errors_hardware", "hardware-neuron-hardware-error"),
        ("mem_ecc_uncorrected", "hbm-neuron-memory-error"),
        ("sram_ecc_uncorrected", "sram-neuron-memory-error"),
        ("execution_errors_runtime", "runtime-neuron-execution-error"),
        ("execution_errors_generic", "generic-neuron-execution-error"),
        ("executions_timed_out", "timeout-neuron-execution-error"),
    ],
)
def test_error_raises_its_alarm_for_its_instance(aws: Account, metric: str, alarm: str) -> None:
    live(aws, 4, {FIRST: HEALTHY, SECOND: HEALTHY})
    assert live(aws, 2, {FIRST: HEALTHY, SECOND: HEALTHY | {metric: 2}}) == [(f"n-{alarm}", "ALARM", SECOND)]


def test_silent_monitor_raises_the_alarm_of_its_instance_alone(aws: Account) -> None:
    live(aws, 12, {FIRST: HEALTHY, SECOND: HEALTHY})
    assert live(aws, 25, {FIRST: HEALTHY}) == []
    assert live(aws, 25, {SECOND: HEALTHY}) == [("i-neuron-monitor-silent", "ALARM", None)]


def test_each_alarm_of_the_table_is_made_and_has_a_runbook() -> None:
    made: dict[str, Any] = neuron.neuron_alarms(PLAN)["Resources"] | neuron.neuron_instance_alarm(PLAN)["Resources"]
    texts = [one["Properties"]["AlarmName"]["Fn::Sub"] for one in made.values() if one["Type"].endswith("::Alarm")]
    known = {find_runbook(text.replace("${AWS::StackName}", "n"), "").subject for text in texts}
    assert known == {alarm.name for alarm in alarms.of_kind(alarms.NEURON)}


def test_dashboard_asks_for_metrics_that_are_published() -> None:
    source = Path(__file__).parents[2] / "roles" / "neuron_monitor" / "files" / "neuron_metrics" / "documents.py"
    page = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
    assert source.is_file()
    for widget in neuron.body(PLAN, "us-east-1")["widgets"]:
        expression = widget["properties"]["metrics"][0][0]["expression"]
        name = expression.partition('MetricName="')[2].partition('"')[0]
        stem = name.removesuffix("_p99").removeprefix("execution_errors_").removeprefix("executions_")
        assert stem in page, name
