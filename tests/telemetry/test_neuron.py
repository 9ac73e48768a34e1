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
from gpu_ami.plan import make_plan
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import alarms, dashboard, measurements, templates
from gpu_ami.telemetry.alarms import find_runbook
from localregion import alarms as evaluation
from localregion import backends
from tests.localregion.alarms.conftest import Account
from tests.telemetry.instance import GROUP as EVENTS
from tests.telemetry.instance import Instance, Minute

PLAN = make_plan(find_recipe(Path("al2023-neuron")), Place(name="aws", region="us-east-1")).document
GROUP = "/ec2/accelerated/neuron-metrics"
FIRST, SECOND = "i-00000000000000001", "i-00000000000000002"
HEALTHY = {"reports": 1, "execution_errors_hardware": 0, "executions_timed_out": 0, "mem_ecc_uncorrected": 0}


@pytest.fixture
def aws() -> Iterator[Account]:
    """All three stacks; the topics lead to the queue."""
    backends.install()
    evaluation.install()
    with mock_aws():
        account = Account()
        texts = templates.render(PLAN, "us-east-1")
        cloudformation = account("cloudformation")
        make_stack(account, "t", texts["telemetry.yml"], {})
        outputs = cloudformation.describe_stacks(StackName="t")["Stacks"][0]["Outputs"]
        topics = {f"{one['OutputKey']}Arn": one["OutputValue"] for one in outputs if "Topic" in one["OutputKey"]}
        for topic in topics.values():
            queue = "arn:aws:sqs:us-east-1:123456789012:q"
            account("sns").subscribe(TopicArn=topic, Protocol="sqs", Endpoint=queue)
        make_stack(account, "n", texts["neuron-alarms.yml"], topics)
        given = {"InstanceId": FIRST, "PageTopicArn": topics["PageTopicArn"]}
        make_stack(account, "i", texts["neuron-instance-alarm.yml"], given)
        for group in (GROUP, EVENTS):
            account("logs").create_log_stream(logGroupName=group, logStreamName="s")
        yield account


def make_stack(account: Account, name: str, text: str, given: dict[str, str]) -> None:
    parameters = [{"ParameterKey": key, "ParameterValue": value} for key, value in given.items()]
    account("cloudformation").create_stack(
        StackName=name, TemplateBody=text, Parameters=parameters, Capabilities=["CAPABILITY_NAMED_IAM"]
    )


def live(
    aws: Account, minutes: int, reports: dict[str, dict[str, float]], heartbeats: tuple[str, ...] = (FIRST, SECOND)
) -> list[tuple[str, str, str | None]]:
    """Each instance's metrics as embedded documents, as its publisher writes them.

    heartbeats: of the event parsers of these instances, in their own log group.
    """
    for _ in range(minutes):
        when = (aws.now - datetime.timedelta(seconds=30)).replace(tzinfo=datetime.UTC)
        milliseconds = int(when.timestamp() * 1000)
        events = [
            {"timestamp": milliseconds, "message": document(instance, values, milliseconds)}
            for instance, values in reports.items()
        ]
        if events:
            aws("logs").put_log_events(logGroupName=GROUP, logStreamName="s", logEvents=events)
        lines = [
            {"timestamp": milliseconds, "message": instance.heartbeat(Minute(), when.replace(tzinfo=None))}
            for instance in (Instance(aws, name) for name in heartbeats)
        ]
        if lines:
            aws("logs").put_log_events(logGroupName=EVENTS, logStreamName="s", logEvents=lines)
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


MONITOR, PARSER = "i-neuron-monitor-silent", "i-event-parser-silent"


@pytest.mark.parametrize(
    ("reports", "heartbeats", "raised"),
    [
        ({SECOND: HEALTHY}, (FIRST, SECOND), {MONITOR}),
        ({FIRST: HEALTHY, SECOND: HEALTHY}, (SECOND,), {PARSER}),
        ({SECOND: HEALTHY}, (SECOND,), {MONITOR, PARSER}),
    ],
    ids=["neuron-monitor", "event parser", "agent"],
)
def test_silence_raises_the_alarms_of_its_instance_alone_and_they_end(
    aws: Account, reports: dict[str, dict[str, float]], heartbeats: tuple[str, ...], raised: set[str]
) -> None:
    """The first instance has alarms of its own; the second may be silent without one."""
    live(aws, 12, {FIRST: HEALTHY, SECOND: HEALTHY})
    assert live(aws, 25, {FIRST: HEALTHY}, (FIRST,)) == []
    live(aws, 5, {FIRST: HEALTHY, SECOND: HEALTHY})
    assert live(aws, 3, reports, heartbeats) == []  # a reboot
    live(aws, 5, {FIRST: HEALTHY, SECOND: HEALTHY})
    assert {(name, state) for name, state, _ in live(aws, 11, reports, heartbeats)} == {(n, "ALARM") for n in raised}
    ended = live(aws, 15, {FIRST: HEALTHY, SECOND: HEALTHY})
    assert {(name, state) for name, state, _ in ended} == {(name, "OK") for name in raised}


def test_each_alarm_of_the_table_is_made_and_has_a_runbook() -> None:
    made: dict[str, Any] = (
        templates.neuron_alarms(PLAN)["Resources"] | templates.neuron_instance_alarm(PLAN)["Resources"]
    )
    texts = [one["Properties"]["AlarmName"]["Fn::Sub"] for one in made.values() if one["Type"].endswith("::Alarm")]
    known = {find_runbook(text.replace("${AWS::StackName}", "n"), "").subject for text in texts}
    of_parser = {"event-parser-behind", "event-parser-silent"}
    assert known == {alarm.name for alarm in alarms.of_kind(alarms.NEURON)} | of_parser


def test_dashboard_asks_for_metrics_that_are_published() -> None:
    source = Path(__file__).parents[2] / "onhost" / "neuron_monitor" / "neuron_metrics" / "documents.py"
    page = (Path(__file__).parents[2] / "docs" / "telemetry.md").read_text()
    assert source.is_file()
    shown = json.dumps(dashboard.body(PLAN, "us-east-1"))
    for name in [one.metric for one in measurements.SHOWN]:
        assert f'Namespace=\\"GpuAmi/Neuron\\" MetricName=\\"{name}\\"' in shown
        stem = name.removesuffix("_p99").removeprefix("execution_errors_").removeprefix("executions_")
        assert stem in page, name
