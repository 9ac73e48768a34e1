"""The template site-alarms.yml: the alarms of a site's own, of all instances in a Region."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from gpu_ami.recipes import PlanDocument, SiteAlarm
from gpu_ami.telemetry.instance_alarms import logical_id
from gpu_ami.telemetry.measurements import ALARMS_NAMESPACE

FILE = "site-alarms.yml"
Template = dict[str, Any]


def site_template(plan: PlanDocument, alarms: Sequence[SiteAlarm]) -> Template:
    """One stack a Region. Its parameters are the topics of the telemetry stack."""
    arn = {"Type": "String", "AllowedPattern": "arn:aws[a-z-]*:sns:.+"}
    resources: Template = {}
    for alarm in alarms:
        made = logical_id(alarm.name)
        if alarm.logs:
            resources[f"{made}Filter"] = _filter(alarm)
        resources[f"{made}Alarm"] = {"Type": "AWS::CloudWatch::Alarm", "Properties": _properties(alarm)}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Alarms of the site of {plan['image']}: gpu-ami telemetry made it",
        "Parameters": {
            "PageTopicArn": arn | {"Description": "Output PageTopic of the telemetry stack"},
            "TicketTopicArn": arn | {"Description": "Output TicketTopic of the telemetry stack"},
        },
        "Resources": resources,
    }


def _properties(alarm: SiteAlarm) -> Template:
    actions = [{"Ref": f"{alarm.urgency.capitalize()}TopicArn"}]
    return {
        "AlarmName": {"Fn::Sub": f"${{AWS::StackName}}-{alarm.name}"},
        "AlarmDescription": f"{alarm.meaning}\nFirst: {alarm.first}\nRunbook: gpu-ami runbook {alarm.name}",
        "AlarmActions": actions,
        "OKActions": actions,
        "TreatMissingData": "notBreaching",
        **(_of_metric(alarm) if alarm.metric else _of_lines(alarm)),
    }


def _name(alarm: SiteAlarm) -> Template:
    return {"Fn::Sub": f"${{AWS::StackName}}-{alarm.name}"}


def _filter(alarm: SiteAlarm) -> Template:
    assert alarm.logs
    counted = {"MetricNamespace": ALARMS_NAMESPACE, "MetricName": _name(alarm), "MetricValue": "1", "DefaultValue": 0}
    return {
        "Type": "AWS::Logs::MetricFilter",
        "Properties": {
            "FilterName": _name(alarm),
            "LogGroupName": alarm.logs.group,
            "FilterPattern": alarm.logs.pattern,
            "MetricTransformations": [counted],
        },
    }


def _of_lines(alarm: SiteAlarm) -> Template:
    return {
        "Namespace": ALARMS_NAMESPACE,
        "MetricName": _name(alarm),
        "Statistic": "Sum",
        "Period": 60,
        "EvaluationPeriods": 5,
        "DatapointsToAlarm": 1,
        "ComparisonOperator": "GreaterThanOrEqualToThreshold",
        "Threshold": 1,
    }


def _of_metric(alarm: SiteAlarm) -> Template:
    metric = alarm.metric
    assert metric
    is_above = metric.above is not None
    query = (
        f'SELECT {metric.statistic}({_quoted(metric.name)}) FROM "{metric.namespace}"'
        f" GROUP BY {_quoted(metric.dimension)} ORDER BY {metric.statistic}() {'DESC' if is_above else 'ASC'}"
    )
    return {
        "ComparisonOperator": "GreaterThanThreshold" if is_above else "LessThanThreshold",
        "Threshold": metric.above if is_above else metric.below,
        "EvaluationPeriods": metric.minutes,
        "Metrics": [{"Id": "instances", "Expression": query, "Period": 60, "ReturnData": True}],
    }


def _quoted(name: str) -> str:
    """A name in a Metrics Insights query: with other characters than letters, digits and _ in double quotes."""
    return name if name.replace("_", "").isalnum() else f'"{name}"'
