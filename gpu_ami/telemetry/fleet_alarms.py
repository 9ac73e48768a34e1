"""CloudFormation template fleet-alarms.yml: alarms for instances that come and go, one stack a Region.

Each alarm is a Metrics Insights query whose groups are instances: CloudWatch calls them contributors, gives each one a
state, and notifies for each ("Create a CloudWatch alarm based on a Metrics Insights query", read 2026-11-23). An
instance joins with its first datapoint and leaves with its last one, so a silent instance raises none of them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_ami.recipes import PlanDocument
from gpu_ami.telemetry import alarms, instance_alarms
from gpu_ami.telemetry.measurements import EVENTS_NAMESPACE, Measured, measured

Template = dict[str, Any]
_PERIOD = 300


@dataclass(frozen=True)
class Watched:
    """An alarm of the table on a query. label: what its name in CloudWatch has before the alarm's own."""

    alarm: str
    label: str
    query: str
    compared: Template


def fleet_alarms(plan: PlanDocument) -> Template:
    """The template; its parameters are the topics of the telemetry stack."""
    facts = measured(plan)
    arn = {"Type": "String", "AllowedPattern": "arn:aws[a-z-]*:sns:.+"}
    return {
        "AWSTemplateFormatVersion": "2010-09-09",
        "Description": f"Alarms of all instances of {facts.image} in a Region: gpu-ami telemetry made it",
        "Parameters": {
            "PageTopicArn": arn | {"Description": "Output PageTopic of the telemetry stack"},
            "TicketTopicArn": arn | {"Description": "Output TicketTopic of the telemetry stack"},
        },
        "Resources": resources(facts),
    }


def resources(facts: Measured) -> Template:
    """Logical id → alarm."""
    return _resources([*_series(facts), *_events()], facts)


def parser_resources(facts: Measured) -> Template:
    """Those of the event parser alone, which every instance has."""
    return _resources([one for one in _events() if one.alarm == "event-parser-behind"], facts)


def _resources(watched: Sequence[Watched], facts: Measured) -> Template:
    named = {alarm.name: alarm for alarm in alarms.of_kind(alarms.INSTANCE)}
    return {_logical_id(one): _resource(named[one.alarm], one, facts) for one in watched}


def _logical_id(one: Watched) -> str:
    label = "".join(part.capitalize() for part in one.label.replace(".", "-").split("-"))
    return label + instance_alarms.logical_id(one.alarm)


def _series(facts: Measured) -> list[Watched]:
    """Of each instance type with several GPUs: a missing GPU is one among others."""
    window = instance_alarms.sample_window(facts.interval_s)
    return [
        Watched(
            "gpu-series-missing", name,
            f"SELECT COUNT({facts.witness}) FROM \"{facts.namespace}\" WHERE InstanceType = '{name}' "
            "GROUP BY InstanceId ORDER BY COUNT() ASC",
            {
                "ComparisonOperator": "LessThanThreshold",
                "Threshold": instance_alarms.fewest_samples(limit.gpus, facts.interval_s),
                "EvaluationPeriods": window.periods, "DatapointsToAlarm": window.to_alarm, "Period": window.period,
            },
        )
        for name, limit in sorted(facts.limits.items()) if limit.gpus > 1
    ]  # fmt: skip


def _events() -> list[Watched]:
    """Of the event parser's metrics, which have the instance as their only dimension."""
    return [
        Watched(
            alarm, label,
            f'SELECT {function}({metric}) FROM SCHEMA("{EVENTS_NAMESPACE}", InstanceId) '
            f"GROUP BY InstanceId ORDER BY {function}() DESC",
            {
                "ComparisonOperator": "GreaterThanThreshold", "Threshold": limit,
                "EvaluationPeriods": 1, "Period": _PERIOD,
            },
        )
        for alarm, label, function, metric, limit in (
            ("event-parser-behind", "late", "MAX", "LagSeconds", instance_alarms.LATE_SECONDS),
            ("event-parser-behind", "lost", "SUM", "RecordsLost", 0),
            ("event-parser-behind", "dropped", "SUM", "EventsDropped", 0),
            ("gpu-remap-after-boot", "pending", "MAX", "RowRemapPending", 0),
            ("gpu-remap-after-boot", "failed", "MAX", "RowRemapFailure", 0),
            ("gpu-unknown-after-boot", "some", "MAX", "RecoveryUnknown", 0),
        )
    ]  # fmt: skip


def _resource(alarm: alarms.Alarm, one: Watched, facts: Measured) -> Template:
    compared = dict(one.compared)
    query = {"Id": "instances", "Expression": one.query, "Period": compared.pop("Period"), "ReturnData": True}
    topic = [{"Ref": "PageTopicArn" if alarm.urgency == "page" else "TicketTopicArn"}]
    return {
        "Type": "AWS::CloudWatch::Alarm",
        "Properties": {
            "AlarmName": {"Fn::Sub": f"${{AWS::StackName}}-{one.label}-{alarm.name}"},
            "AlarmDescription": alarm.description(facts.json_log_group),
            "AlarmActions": topic,
            "OKActions": topic,
            **compared,
            "TreatMissingData": "notBreaching",
            "Metrics": [query],
        },
    }
