"""The alarms of one instance, as CloudFormation resources: what its metrics are compared with.

All metrics are those with the dimension InstanceId alone: the event parser's, and the agent's aggregation over the
GPUs, whose number of samples tells how many GPUs reported. Metric math takes a value that is missing in one of two
series as 0, and has no datapoint where both are missing: `heartbeat + 0 * samples` has one as long as the instance
sends anything, so each silence has one alarm.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from gpu_ami.recipes import PlanDocument
from gpu_ami.telemetry import alarms
from gpu_ami.telemetry.measurements import EVENTS_NAMESPACE, Measured, measured
from validator.measurement import PREFIX

Value = Any  # of a template: text, number, or a function of CloudFormation
_BUSY = 90  # percent
LATE_SECONDS = 60
_WINDOW_SECONDS = 300


@dataclass(frozen=True)
class Target:
    """The instance: its id, the topics by urgency, and the limits of its type; values of a template."""

    instance_id: Value
    topics: dict[str, Value]
    fewest_samples: Value
    half_clock: Value
    name_prefix: str


def resources(measured: Measured, target: Target) -> dict[str, Any]:
    """Logical id → resource of each alarm that the plan's measurements allow."""
    made = _compared(measured, target)
    return {
        logical_id(alarm.name): _resource(alarm, made[alarm.name], measured, target)
        for alarm in alarms.of_kind(alarms.INSTANCE)
        if alarm.name in made
    }


def parser_silent(measured: Measured, target: Target) -> dict[str, Any]:
    """The alarm of a silent event parser by its heartbeat alone, for an instance without the metrics of GPUs.

    What Neuron devices report has dimensions of the plan's choice, so no expression can tell a silent agent by it: then
    this alarm and that of the silent neuron-monitor are raised together.
    """
    [alarm] = [one for one in alarms.of_kind(alarms.INSTANCE) if one.name == "event-parser-silent"]
    heartbeat = _stat("heartbeat", EVENTS_NAMESPACE, "Heartbeat", "Sum", 60, target=target) | {"ReturnData": True}
    compared = _less(1, [heartbeat]) | {"EvaluationPeriods": 5, "TreatMissingData": "breaching"}
    return _resource(alarm, compared, measured, target)


def logical_id(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("-"))


@dataclass(frozen=True)
class SampleWindow:
    """In which GPUs are counted: a period (s) that holds whole samples of each GPU if five minutes can, how many of
    them are compared (about ten minutes), and how many must be short.

    Three may be short without a fault: the newest, whose data is on its way, and the two around a gap or a boot.
    """

    period: int
    periods: int
    to_alarm: int


def sample_window(interval_s: int) -> SampleWindow:
    period = math.lcm(60, interval_s)
    period = period if period <= _WINDOW_SECONDS else _WINDOW_SECONDS * math.ceil(interval_s / _WINDOW_SECONDS)
    periods = max(4, 600 // period)
    return SampleWindow(period, periods, max(4, math.ceil(0.7 * periods)))


def fewest_samples(gpus: int, interval_s: int) -> int:
    """Samples in a period below which a GPU is missing: half of one GPU's samples fewer than all have."""
    each, rest = divmod(sample_window(interval_s).period, interval_s)
    if rest:
        return int((gpus - 0.5) * sample_window(interval_s).period / interval_s)
    return gpus * each - each // 2


def _resource(alarm: alarms.Alarm, compared: dict[str, Any], measured: Measured, target: Target) -> dict[str, Any]:
    name = {"Fn::Sub": f"{target.name_prefix}-{alarm.name}"}
    text = alarm.description(measured.json_log_group)
    actions = [target.topics[alarm.urgency]]
    properties = {"AlarmName": name, "AlarmDescription": text, "AlarmActions": actions, "OKActions": actions}
    return {"Type": "AWS::CloudWatch::Alarm", "Properties": properties | compared}


def _compared(measured: Measured, target: Target) -> dict[str, dict[str, Any]]:
    """Name of each alarm → what is compared."""
    heartbeat = _stat("heartbeat", EVENTS_NAMESPACE, "Heartbeat", "Sum", measured.period, target=target)
    samples = _stat("samples", measured.namespace, measured.witness, "SampleCount", measured.period, target=target)
    both = [heartbeat, samples]
    made = {
        "agent-silent": _silent("heartbeat + samples", both, missing="breaching"),
        "event-parser-silent": _silent("heartbeat + 0 * samples", both, missing="notBreaching"),
        "gpu-metrics-missing": _silent("samples + 0 * heartbeat", both, missing="notBreaching"),
        "gpu-series-missing": _short(measured, target),
        "event-parser-behind": _behind(target),
        "gpu-remap-after-boot": _after_boot(
            "pending + failed", target, pending="RowRemapPending", failed="RowRemapFailure"
        ),
        "gpu-unknown-after-boot": _after_boot("unknown", target, unknown="RecoveryUnknown"),
    }
    if measured.has("utilization_gpu", "clocks_current_sm"):
        made["gpu-clocks-throttled"] = _throttled(measured, target)
    return made


def _silent(expression: str, metrics: list[dict[str, Any]], *, missing: str) -> dict[str, Any]:
    return _less(1, _expression(expression, *metrics)) | {"EvaluationPeriods": 5, "TreatMissingData": missing}


def _short(measured: Measured, target: Target) -> dict[str, Any]:
    """Fewer samples than the GPUs of the type send; no sample at all is another alarm."""
    window = sample_window(measured.interval_s)
    samples = _stat("samples", measured.namespace, measured.witness, "SampleCount", window.period, target=target)
    return _less(target.fewest_samples, [samples | {"ReturnData": True}]) | {
        "EvaluationPeriods": window.periods, "DatapointsToAlarm": window.to_alarm, "TreatMissingData": "notBreaching",
    }  # fmt: skip


def _behind(target: Target) -> dict[str, Any]:
    metrics = [
        _stat(name, EVENTS_NAMESPACE, metric, statistic, 300, target=target)
        for name, metric, statistic in (
            ("lag", "LagSeconds", "Maximum"), ("lost", "RecordsLost", "Sum"), ("dropped", "EventsDropped", "Sum"),
        )
    ]  # fmt: skip
    condition = f"IF(lag > {LATE_SECONDS} OR lost > 0 OR dropped > 0, 1, 0)"
    return _more(_expression(condition, *metrics)) | {"EvaluationPeriods": 1, "TreatMissingData": "notBreaching"}


def _after_boot(expression: str, target: Target, **named: str) -> dict[str, Any]:
    """The parser asks once after each boot: until the next boot the last answer holds. named: id → metric."""
    metrics = [_stat(name, EVENTS_NAMESPACE, metric, "Maximum", 300, target=target) for name, metric in named.items()]
    return _more(_expression(expression, *metrics)) | {"EvaluationPeriods": 1, "TreatMissingData": "ignore"}


def _throttled(measured: Measured, target: Target) -> dict[str, Any]:
    """All GPUs busy, and the slowest at half of its clock: an idle GPU lowers its clock, which is no fault."""
    metrics = [
        _stat(name, measured.namespace, PREFIX + metric, "Minimum", 300, target=target)
        for name, metric in (("busy", "utilization_gpu"), ("clock", "clocks_current_sm"))
    ]
    condition = f"IF(busy >= {_BUSY} AND clock <= ${{Half}}, 1, 0)"
    expression = _expression({"Fn::Sub": [condition, {"Half": target.half_clock}]}, *metrics)
    return _more(expression) | {"EvaluationPeriods": 3, "TreatMissingData": "notBreaching"}


def _stat(name: str, namespace: str, metric: str, statistic: str, period: int, *, target: Target) -> dict[str, Any]:
    dimensions = [{"Name": "InstanceId", "Value": target.instance_id}]
    of = {"Namespace": namespace, "MetricName": metric, "Dimensions": dimensions}
    return {"Id": name, "ReturnData": False, "MetricStat": {"Metric": of, "Period": period, "Stat": statistic}}


def _expression(expression: Value, *metrics: dict[str, Any]) -> list[dict[str, Any]]:
    return [{"Id": "result", "ReturnData": True, "Expression": expression}, *metrics]


def _less(threshold: Value, metrics: list[dict[str, Any]]) -> dict[str, Any]:
    return {"ComparisonOperator": "LessThanThreshold", "Threshold": threshold, "Metrics": metrics}


def _more(metrics: list[dict[str, Any]]) -> dict[str, Any]:
    return {"ComparisonOperator": "GreaterThanOrEqualToThreshold", "Threshold": 1, "Metrics": metrics}


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
        "Resources": fleet_resources(facts),
    }


def fleet_resources(facts: Measured) -> Template:
    """Logical id → alarm."""
    return _resources([*_series(facts), *_events()], facts)


def parser_resources(facts: Measured) -> Template:
    """Those of the event parser alone, which every instance has."""
    return _resources([one for one in _events() if one.alarm == "event-parser-behind"], facts)


def _resources(watched: Sequence[Watched], facts: Measured) -> Template:
    named = {alarm.name: alarm for alarm in alarms.of_kind(alarms.INSTANCE)}
    return {_logical_id(one): _fleet_resource(named[one.alarm], one, facts) for one in watched}


def _logical_id(one: Watched) -> str:
    label = "".join(part.capitalize() for part in one.label.replace(".", "-").split("-"))
    return label + logical_id(one.alarm)


def _series(facts: Measured) -> list[Watched]:
    """Of each instance type with several GPUs: a missing GPU is one among others."""
    window = sample_window(facts.interval_s)
    return [
        Watched(
            "gpu-series-missing", name,
            f"SELECT COUNT({facts.witness}) FROM \"{facts.namespace}\" WHERE InstanceType = '{name}' "
            "GROUP BY InstanceId ORDER BY COUNT() ASC",
            {
                "ComparisonOperator": "LessThanThreshold",
                "Threshold": fewest_samples(limit.gpus, facts.interval_s),
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
            ("event-parser-behind", "late", "MAX", "LagSeconds", LATE_SECONDS),
            ("event-parser-behind", "lost", "SUM", "RecordsLost", 0),
            ("event-parser-behind", "dropped", "SUM", "EventsDropped", 0),
            ("gpu-remap-after-boot", "pending", "MAX", "RowRemapPending", 0),
            ("gpu-remap-after-boot", "failed", "MAX", "RowRemapFailure", 0),
            ("gpu-unknown-after-boot", "some", "MAX", "RecoveryUnknown", 0),
        )
    ]  # fmt: skip


def _fleet_resource(alarm: alarms.Alarm, one: Watched, facts: Measured) -> Template:
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
