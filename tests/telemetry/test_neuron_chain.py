"""The telemetry stack of a plan with Neuron devices: made, changed, deleted; from the kernel's line to its alarm."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.telemetry import alarms, stack, templates
from gpu_ami.telemetry.measurements import measured
from tests.onhost.event_parser.parser_bench import Bench, make_bench, record, settle  # noqa: F401  (fixture `bench`)
from tests.telemetry.test_neuron import PLAN
from tests.telemetry.test_stack import NAMED, aws, contents, in_alarm, parameter, plain
from validator.probes.agent import ERROR, lint_text

__all__ = ["aws"]
FACTS = measured(PLAN)
GROUPS = ["/ec2/accelerated/accel-event-json", "/ec2/accelerated/accel-event-log", "/ec2/accelerated/neuron-metrics"]
TEXT = templates.render(PLAN, "us-east-1")["telemetry.yml"]
DRILL = (
    "NEURON_HW_ERR=GPU_AMI_DRILL instance-id=i-0abc hostname=gpu-ami-proof nd-id=0 nc-id=0 serial-num=0123456789abcdef"
)


def make(aws: Any, *given: dict[str, str]) -> None:
    aws("cloudformation").create_stack(StackName="t", TemplateBody=TEXT, Parameters=list(given), **NAMED)


def test_stack_is_made_changed_and_deleted(aws: Any) -> None:
    before = contents(aws)
    make(aws, parameter("PageEmail", "oncall@example.com"), parameter("RetentionDays", "30"))
    made = contents(aws)
    assert sorted(made["alarms"]) == sorted(f"t-{alarm.name}" for alarm in alarms.of_kind(alarms.EVENTS))
    assert made["groups"] == GROUPS and len(made["filters"]) == 8 and len(made["topics"]) == 2
    assert len(made["roles"]) == len(made["profiles"]) == len(made["parameters"]) == 1
    assert [one["Endpoint"] for one in made["subscriptions"]] == ["oncall@example.com"]
    assert [one["DashboardName"] for one in made["dashboards"]] == ["My-Neuron-Usage-us-east-1"]
    aws("cloudformation").update_stack(
        StackName="t", TemplateBody=TEXT, Parameters=[parameter("DashboardName", "Other")], **NAMED
    )
    changed = contents(aws)
    assert [one["DashboardName"] for one in changed["dashboards"]] == ["Other"]
    assert (changed["alarms"], changed["groups"]) == (made["alarms"], GROUPS)
    outputs = aws("cloudformation").describe_stacks(StackName="t")["Stacks"][0]["Outputs"]
    assert {one["OutputKey"] for one in outputs} == set(stack.outputs())
    aws("cloudformation").delete_stack(StackName="t")
    assert contents(aws) == before


def test_groups_that_exist_are_kept(aws: Any) -> None:
    for group in GROUPS:
        aws("logs").create_log_group(logGroupName=group)
    make(aws, parameter("MakeLogGroups", "no"))
    aws("cloudformation").delete_stack(StackName="t")
    assert contents(aws)["groups"] == GROUPS


def put(aws: Any, *lines: str) -> None:
    logs = aws("logs")
    if not logs.describe_log_streams(logGroupName=GROUPS[0])["logStreams"]:
        logs.create_log_stream(logGroupName=GROUPS[0], logStreamName="i-0abc")
    events = [{"timestamp": int(time.time() * 1000), "message": line} for line in lines]
    logs.put_log_events(logGroupName=GROUPS[0], logStreamName="i-0abc", logEvents=events)


def written(bench: Bench, *records: bytes) -> list[str]:
    service = bench.start()
    bench.print(*records)
    settle(service)
    return [line for line in Path(bench.options.json_log).read_text().splitlines() if '"neuron"' in line]


@pytest.mark.parametrize(
    ("line", "alarm"),
    [
        ("NEURON_HW_ERR=HBM_UNCORRECTABLE_ERROR instance-id=i-0abc nd-id=0", "gpu-stop-start"),
        ("NEURON_HW_ERR=HANG_ON_COLLECTIVES nd-id=0", "gpu-application-error"),
        ("neuron:nr_reset_thread_fn: nd0: reset request 1 failed", "gpu-reboot"),
        ("NEURON_HW_ERR=SOMETHING_NEW nd-id=0", "gpu-aws-support"),
        (DRILL, "gpu-aws-support"),  # whoever writes it as the kernel means it
    ],
)
def test_kernel_line_raises_its_alarm_alone_and_a_drill_none(aws: Any, bench: Bench, line: str, alarm: str) -> None:
    make(aws)
    drill = written(bench, record(1, line, priority=12), record(2, DRILL, priority=12))
    assert len(drill) == 2 and all('"origin":"userland"' in one for one in drill)
    put(aws, *drill)
    assert in_alarm(aws) == set()
    put(aws, *[one for one in written(bench, record(3, line)) if '"origin":"kernel"' in one])
    assert in_alarm(aws) == {f"t-{alarm}"}


def test_role_writes_the_three_groups_and_publishes_no_metric() -> None:
    """CloudWatch makes the metrics of the log; the agent has none of its own to publish."""
    of_role: Any = plain(stack.statements(FACTS))
    assert [one["Sid"] for one in of_role] == ["WriteLogs", "ReadOwnTags", "ReadAgentConfiguration"]
    arns = of_role[0]["Resource"]
    assert len(arns) == 6 and all(any(arn.endswith(f":{group}:*") for arn in arns) for group in GROUPS)


def test_agents_configuration_is_the_plans(aws: Any) -> None:
    make(aws)
    value = aws("ssm").get_parameter(Name="AmazonCloudWatch-t")["Parameter"]["Value"]
    assert [str(finding) for finding in lint_text(value) if finding.severity == ERROR] == []
    sent = json.loads(value)["logs"]["logs_collected"]["files"]["collect_list"]
    planned = PLAN["cloudwatch_agent"]["config"]["logs"]["logs_collected"]["files"]["collect_list"]
    assert sent == planned and "endpoint_override" not in value and "metrics" not in json.loads(value)
