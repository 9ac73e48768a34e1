"""The stack on moto's CloudFormation: made, changed and deleted, leaving nothing; and what raises its alarms."""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import boto3
import pytest
from moto import mock_aws

from gpu_ami.cloud import Place, policies
from gpu_ami.events.reader import parser_module
from gpu_ami.plan import make_plan
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import alarms, stack, templates
from gpu_ami.telemetry.measurements import ALARMS_NAMESPACE, measured
from localregion import backends
from validator.probes.agent import ERROR, lint_text

REGION = "us-east-1"
PLAN = make_plan(find_recipe(Path("al2023-any-gpu")), Place(name="aws", region=REGION)).document
FACTS = measured(PLAN)
NAMED = {"Capabilities": ["CAPABILITY_NAMED_IAM"]}


@pytest.fixture
def aws(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Clients of an empty account, with the local region's models."""
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    backends.install()
    with mock_aws():
        yield lambda service: boto3.client(service, region_name=REGION)


@functools.cache
def texts() -> dict[str, str]:
    return templates.render(PLAN, REGION)


def text(name: str) -> str:
    return texts()[name]


def contents(aws: Any) -> dict[str, list[Any]]:
    """Everything that a stack of this project can make, by kind."""
    cloudwatch, logs = aws("cloudwatch"), aws("logs")
    ec2 = aws("ec2")
    return {
        "alarms": [alarm["AlarmName"] for alarm in cloudwatch.describe_alarms()["MetricAlarms"]],
        "dashboards": cloudwatch.list_dashboards()["DashboardEntries"],
        "filters": logs.describe_metric_filters()["metricFilters"],
        "groups": [group["logGroupName"] for group in logs.describe_log_groups()["logGroups"]],
        "topics": aws("sns").list_topics()["Topics"],
        "subscriptions": aws("sns").list_subscriptions()["Subscriptions"],
        "parameters": aws("ssm").describe_parameters()["Parameters"],
        "roles": aws("iam").list_roles()["Roles"],
        "profiles": aws("iam").list_instance_profiles()["InstanceProfiles"],
        "templates": ec2.describe_launch_templates()["LaunchTemplates"],
        "vpcs": [vpc for vpc in ec2.describe_vpcs()["Vpcs"] if not vpc["IsDefault"]],
        "gateways": ec2.describe_internet_gateways()["InternetGateways"],
        "instances": [
            instance
            for reservation in ec2.describe_instances()["Reservations"]
            for instance in reservation["Instances"]
            if instance["State"]["Name"] != "terminated"
        ],
    }


def parameter(key: str, value: str) -> dict[str, str]:
    return {"ParameterKey": key, "ParameterValue": value}


def test_stack_is_made_changed_and_deleted(aws: Any) -> None:
    cloudformation = aws("cloudformation")
    before = contents(aws)
    given = [parameter("PageEmail", "oncall@example.com"), parameter("RetentionDays", "30")]
    cloudformation.create_stack(StackName="t", TemplateBody=text("telemetry.yml"), Parameters=given, **NAMED)
    made = contents(aws)
    assert sorted(made["alarms"]) == sorted(f"t-{alarm.name}" for alarm in alarms.of_kind(alarms.EVENTS))
    assert made["groups"] == [FACTS.json_log_group, FACTS.raw_log_group]
    assert len(made["filters"]) == 8 and len(made["topics"]) == 2
    assert [one["Endpoint"] for one in made["subscriptions"]] == ["oncall@example.com"]
    assert made["dashboards"][0]["DashboardName"] == "My-GPU-Usage-us-east-1"
    cloudformation.update_stack(
        StackName="t", TemplateBody=text("telemetry.yml"), Parameters=[parameter("DashboardName", "Other")], **NAMED
    )
    changed = contents(aws)
    assert [one["DashboardName"] for one in changed["dashboards"]] == ["Other"]
    assert sorted(changed["alarms"]) == sorted(made["alarms"])
    outputs = cloudformation.describe_stacks(StackName="t")["Stacks"][0]["Outputs"]
    assert {one["OutputKey"] for one in outputs} == set(stack.outputs())
    cloudformation.delete_stack(StackName="t")
    assert contents(aws) == before


def test_a_stack_of_the_same_name_is_made_in_a_second_region(aws: Any) -> None:
    """Roles, profiles and dashboards are an account's; moto refuses the second role, but knows dashboards by Region."""
    for region in (REGION, "eu-central-1"):
        cloudformation = boto3.client("cloudformation", region_name=region)
        cloudformation.create_stack(StackName="t", TemplateBody=text("telemetry.yml"), **NAMED)
        (board,) = boto3.client("cloudwatch", region_name=region).list_dashboards()["DashboardEntries"]
        assert board["DashboardName"] == f"My-GPU-Usage-{region}"
    names = {f"gpu-ami-t-{region}" for region in (REGION, "eu-central-1")}
    assert {one["RoleName"] for one in contents(aws)["roles"]} == names
    assert {one["InstanceProfileName"] for one in contents(aws)["profiles"]} == names


def test_groups_that_exist_are_kept(aws: Any) -> None:
    for group in (FACTS.raw_log_group, FACTS.json_log_group):
        aws("logs").create_log_group(logGroupName=group)
    cloudformation = aws("cloudformation")
    given = [parameter("MakeLogGroups", "no")]
    cloudformation.create_stack(StackName="t", TemplateBody=text("telemetry.yml"), Parameters=given, **NAMED)
    assert len(contents(aws)["filters"]) == 8
    cloudformation.delete_stack(StackName="t")
    assert contents(aws)["groups"] == [FACTS.json_log_group, FACTS.raw_log_group]


def event(action: str, origin: str, code: int = 79) -> str:
    """A line as the parser of the image writes it."""
    fields = {"schema": "gpu-ami/event/1", "kind": "xid", "code": code, "severity": "fatal", "action": action}
    document = parser_module("emf").event_document(
        {**fields, "origin": origin}, int(time.time() * 1e6), {"InstanceId": "i-0abc"}, 0.1
    )
    return str(parser_module("emf").to_line(document).decode())


def put(aws: Any, *lines: str) -> None:
    logs = aws("logs")
    streams = logs.describe_log_streams(logGroupName=FACTS.json_log_group)["logStreams"]
    if not streams:
        logs.create_log_stream(logGroupName=FACTS.json_log_group, logStreamName="i-0abc")
    events = [{"timestamp": int(time.time() * 1000), "message": line} for line in lines]
    logs.put_log_events(logGroupName=FACTS.json_log_group, logStreamName="i-0abc", logEvents=events)


def in_alarm(aws: Any) -> set[str]:
    """Alarms of events whose metric reaches the threshold now, as CloudWatch compares them."""
    cloudwatch = aws("cloudwatch")
    red = set()
    for alarm in cloudwatch.describe_alarms()["MetricAlarms"]:
        metric = {"Namespace": alarm["Namespace"], "MetricName": alarm["MetricName"], "Dimensions": []}
        stat = {"Metric": metric, "Period": alarm["Period"], "Stat": alarm["Statistic"]}
        answer = cloudwatch.get_metric_data(
            MetricDataQueries=[{"Id": "m", "MetricStat": stat}], StartTime=time.time() - 120, EndTime=time.time() + 60
        )
        assert alarm["ComparisonOperator"] == "GreaterThanOrEqualToThreshold"
        if any(value >= alarm["Threshold"] for value in answer["MetricDataResults"][0]["Values"]):
            red.add(alarm["AlarmName"])
    return red


@pytest.mark.parametrize("alarm", alarms.of_kind(alarms.EVENTS), ids=lambda alarm: alarm.name)
def test_kernel_event_raises_its_alarm_alone_and_a_drill_none(aws: Any, alarm: alarms.Alarm) -> None:
    aws("cloudformation").create_stack(StackName="t", TemplateBody=text("telemetry.yml"), **NAMED)
    drills = [event(action, "userland") for action in alarm.actions]
    drills += [event("IGNORE", "userland", code) for code in alarm.codes]
    put(aws, *drills, "not JSON", event("IGNORE", "kernel", 43))
    assert in_alarm(aws) == set()
    put(aws, event(alarm.actions[0], "kernel"))
    assert in_alarm(aws) == {f"t-{alarm.name}"}


def test_codes_and_the_snapshot_at_boot_raise_the_alarm_of_memory(aws: Any) -> None:
    aws("cloudformation").create_stack(StackName="t", TemplateBody=text("telemetry.yml"), **NAMED)
    put(aws, event("IGNORE", "kernel", 92))
    assert in_alarm(aws) == {"t-gpu-memory-repair"}
    put(aws, json.dumps({"kind": "recovery", "action": "ISOLATE"}))
    assert in_alarm(aws) == {"t-gpu-memory-repair", "t-gpu-aws-support"}


def test_event_metrics_are_those_that_the_parser_embeds(aws: Any) -> None:
    aws("cloudformation").create_stack(StackName="t", TemplateBody=text("telemetry.yml"), **NAMED)
    put(aws, event("RESTART_BM", "kernel"), event("RESTART_BM", "userland"))
    listed = aws("cloudwatch").list_metrics(Namespace="GpuAmi/Events")["Metrics"]
    assert {metric["MetricName"] for metric in listed} == {"XidEvents", "DrillEvents", "LagSeconds"}


def plain(value: Any) -> Any:
    """A template's value with the text of each Fn::Sub in its place."""
    if isinstance(value, dict):
        return value["Fn::Sub"] if set(value) == {"Fn::Sub"} else {key: plain(one) for key, one in value.items()}
    return [plain(one) for one in value] if isinstance(value, list) else value


def test_role_allows_no_more_than_the_policy_of_instances() -> None:
    wide = policies.read_policy("instance")
    of_role: Any = plain(stack.statements(FACTS))
    assert [one["Sid"] for one in of_role] == [*(one["Sid"] for one in wide), "ReadAgentConfiguration"]
    publish = {"cloudwatch:namespace": "Elsewhere"}
    assert not policies.allows(of_role, policies.Request("cloudwatch:PutMetricData", "*", publish))
    for group, expected in ((FACTS.json_log_group, True), ("/ec2/accelerated/other", False)):
        arn = f"arn:${{AWS::Partition}}:logs:${{AWS::Region}}:${{AWS::AccountId}}:log-group:{group}:*"
        written = [statement for statement in of_role if arn in policies.listed(statement["Resource"])]
        assert bool(written) is expected


def test_agents_configuration_is_the_plans_and_fits(aws: Any) -> None:
    aws("cloudformation").create_stack(StackName="t", TemplateBody=text("telemetry.yml"), **NAMED)
    value = aws("ssm").get_parameter(Name="AmazonCloudWatch-t")["Parameter"]["Value"]
    assert len(value) <= stack.PARAMETER_CHARACTERS
    assert [str(finding) for finding in lint_text(value) if finding.severity == ERROR] == []
    document = json.loads(value)
    assert document["metrics"]["metrics_collected"] == PLAN["cloudwatch_agent"]["gpu_config"]["metrics"][
        "metrics_collected"
    ]  # fmt: skip
    assert "endpoint_override" not in value


def test_metrics_of_filters_are_the_stacks_own(aws: Any) -> None:
    """Two stacks in one Region, as a lab beside production, count into different metrics."""
    cloudformation = aws("cloudformation")
    cloudformation.create_stack(StackName="t", TemplateBody=text("telemetry.yml"), **NAMED)
    filters = contents(aws)["filters"]
    transformed = [one["metricTransformations"][0] for one in filters]
    assert {one["metricNamespace"] for one in transformed} == {ALARMS_NAMESPACE}
    assert all(one["metricName"].startswith("t-") for one in transformed)
