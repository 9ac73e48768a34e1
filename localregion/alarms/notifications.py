"""The message that CloudWatch publishes to an SNS topic when an alarm changes its state.

Source: CloudWatch user guide, "Notifying users on alarm changes" (SNS notifications), and messages as subscribers get
them. The two fields of a contributor have the names of AlarmHistoryItem; their form in a message is not documented.
"""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from moto.cloudwatch.models import Alarm, CloudWatchBackend, Dimension, MetricDataQuery

from localregion.alarms.datapoints import Labels
from localregion.alarms.evaluation import MISSING, stamp

SUBJECT_CHARACTERS = 100  # of an SNS message (API reference of SNS, Publish)


@dataclass(frozen=True)
class Change:
    """A change of state; labels: of the contributor that changed, () for the alarm itself."""

    old: str
    new: str
    reason: str
    time: datetime.datetime
    labels: Labels = ()


def subject(alarm: Alarm, change: Change) -> str:
    """`ALARM: "gpu-telemetry-gpu-reset" in US East (N. Virginia)`, cut where SNS's limit is."""
    return f'{change.new}: "{alarm.name}" in {region_title(alarm.region_name)}'[:SUBJECT_CHARACTERS]


def message(backend: CloudWatchBackend, alarm: Alarm, change: Change) -> str:
    """The JSON text of the message."""
    contributor = {}
    if change.labels:
        contributor = {
            "AlarmContributorId": contributor_id(change.labels),
            "AlarmContributorAttributes": dict(change.labels),
        }
    document = {
        "AlarmName": alarm.name,
        "AlarmDescription": alarm.description or None,
        "AWSAccountId": backend.account_id,
        "AlarmConfigurationUpdatedTimestamp": stamp(alarm.configuration_updated_timestamp),
        "NewStateValue": change.new,
        "NewStateReason": change.reason,
        "StateChangeTime": stamp(change.time),
        "Region": region_title(alarm.region_name),
        "AlarmArn": alarm.alarm_arn,
        "OldStateValue": change.old,
        "OKActions": alarm.ok_actions,
        "AlarmActions": alarm.alarm_actions,
        "InsufficientDataActions": alarm.insufficient_data_actions,
        **contributor,
        "Trigger": _trigger(alarm),
    }
    return json.dumps(document, separators=(",", ":"))


def contributor_id(labels: Labels) -> str:
    """Sixteen hexadecimal digits that stand for the contributor."""
    import hashlib

    return hashlib.sha256(json.dumps(labels).encode()).hexdigest()[:16]


def _trigger(alarm: Alarm) -> dict[str, Any]:
    metric = {"Metrics": [_query(query) for query in alarm.metric_data_queries]} if alarm.metric_data_queries else {}
    to_alarm = {"DatapointsToAlarm": int(alarm.datapoints_to_alarm)} if alarm.datapoints_to_alarm else {}
    period = {} if alarm.metric_data_queries else {"Period": int(alarm.period)}
    return {
        **({} if alarm.metric_data_queries else _metric(alarm)),
        **period,
        "EvaluationPeriods": int(alarm.evaluation_periods),
        **to_alarm,
        "ComparisonOperator": alarm.comparison_operator,
        "Threshold": float(alarm.threshold),
        "TreatMissingData": alarm.treat_missing_data or MISSING,
        "EvaluateLowSampleCountPercentile": alarm.evaluate_low_sample_count_percentile or "",
        **metric,
    }


def _metric(alarm: Alarm) -> dict[str, Any]:
    statistic = {"StatisticType": "Statistic", "Statistic": str(alarm.statistic).upper()}
    if alarm.extended_statistic:
        statistic = {"StatisticType": "ExtendedStatistic", "ExtendedStatistic": alarm.extended_statistic}
    return {
        "MetricName": alarm.metric_name,
        "Namespace": alarm.namespace,
        **statistic,
        "Unit": alarm.unit,
        "Dimensions": _dimensions(alarm.dimensions),
    }


def _query(query: MetricDataQuery) -> dict[str, Any]:
    shown: dict[str, Any] = {"Id": query.id}
    if query.metric_stat:
        metric = query.metric_stat.metric
        shown["MetricStat"] = {
            "Metric": {
                "Dimensions": _dimensions(metric.dimensions),
                "MetricName": metric.metric_name,
                "Namespace": metric.namespace,
            },
            "Period": int(query.metric_stat.period),
            "Stat": query.metric_stat.stat,
        }
    else:
        shown["Expression"] = query.expression
    if query.label:
        shown["Label"] = query.label
    return shown | {"ReturnData": str(query.return_data).lower() != "false"}


def _dimensions(dimensions: Sequence[Dimension]) -> list[dict[str, str | None]]:
    return [{"value": each.value, "name": each.name} for each in dimensions]


@functools.cache
def region_title(region: str) -> str:
    """us-east-1 → US East (N. Virginia)."""
    from botocore.loaders import Loader

    partitions = Loader().load_data("endpoints")["partitions"]
    titles = [one["regions"][region]["description"] for one in partitions if region in one["regions"]]
    return str(titles[0]) if titles else region
