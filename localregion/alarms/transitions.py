"""Changes of alarm states: the state, the history, and the actions.

Actions happen on transitions alone, and not where they are disabled (CloudWatch user guide, "Alarm actions"); a
Metrics Insights alarm with contributors notifies for each contributor.

Evaluates all alarms: once a minute in the region's daemon, or step by step in a test.

CloudWatch's calls about alarms, where moto answers otherwise than AWS.

PutMetricAlarm: a new alarm is INSUFFICIENT_DATA, a changed one keeps its state (API reference). What is not evaluated
here is refused by its name, because the alarm would never change. SetAlarmState carries out the actions.
DescribeAlarmHistory and DescribeAlarmContributors exist.

The message that CloudWatch publishes to an SNS topic when an alarm changes its state.

Source: CloudWatch user guide, "Notifying users on alarm changes" (SNS notifications), and messages as subscribers get
them. The two fields of a contributor have the names of AlarmHistoryItem; their form in a message is not documented.
"""

from __future__ import annotations

import datetime
import functools
import json
import logging
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from moto.cloudwatch.exceptions import ResourceNotFound, ValidationError
from moto.cloudwatch.models import Alarm, CloudWatchBackend, Dimension, MetricDataQuery, cloudwatch_backends
from moto.cloudwatch.responses import CloudWatchResponse
from moto.core.responses import ActionResult
from moto.sns.exceptions import SNSException
from moto.sns.models import sns_backends

from localregion.alarms import evaluation
from localregion.alarms.evaluation import ALARM, INSUFFICIENT_DATA, MISSING, OK, Labels, Outcome, stamp
from localregion.alarms.metric_math import Unsupported

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


_HistoryItem = dict[str, Any]


def apply(backend: CloudWatchBackend, alarm: Alarm, outcomes: list[Outcome], now: datetime.datetime) -> list[Change]:
    """Changes the alarm's state as the outcomes say, and carries out the actions; returns the changes."""
    if evaluation.is_grouped(alarm):
        return _apply_contributors(backend, alarm, outcomes, now)
    [outcome] = outcomes
    if outcome.state in (None, alarm.state_value):
        return []
    return [change_state(backend, alarm, str(outcome.state), outcome.reason, json.dumps(outcome.data), now=now)]


def change_state(
    backend: CloudWatchBackend, alarm: Alarm, state: str, reason: str, data: str, *, now: datetime.datetime
) -> Change:
    """Sets the state, writes history, and carries out the actions of the new state."""
    change = _set_state(backend, alarm, state, reason, data, now=now)
    _act(backend, alarm, change)
    return change


def _set_state(
    backend: CloudWatchBackend, alarm: Alarm, state: str, reason: str, data: str, *, now: datetime.datetime
) -> Change:
    change = Change(alarm.state_value, state, reason, now)
    old = _described(alarm.state_value, alarm.state_reason, alarm.state_reason_data)
    alarm.state_value, alarm.state_reason, alarm.state_reason_data = state, reason, data
    alarm.state_updated_timestamp = now
    summary = f"Alarm updated from {change.old} to {change.new}"
    document = {"version": "1.0", "oldState": old, "newState": _described(state, reason, data)}
    _record(backend, alarm, "StateUpdate", summary, document, now=now)
    return change


def _described(state: str, reason: str, data: str) -> dict[str, Any]:
    return {"stateValue": state, "stateReason": reason, "stateReasonData": json.loads(data or "{}")}


def _apply_contributors(
    backend: CloudWatchBackend, alarm: Alarm, outcomes: list[Outcome], now: datetime.datetime
) -> list[Change]:
    """A contributor begins as OK, is in ALARM or OK, and is gone without a notification when its data is."""
    before = contributor_states(alarm)
    states: dict[Labels, tuple[str, str]] = {}
    changes = []
    for outcome in outcomes:
        old, old_reason = before.get(outcome.labels, (OK, ""))
        new = old if outcome.state in (None, INSUFFICIENT_DATA) else str(outcome.state)
        states[outcome.labels] = (new, outcome.reason if new != old else old_reason)
        if new != old:
            changes.append(Change(old, new, outcome.reason, now, outcome.labels))
    alarm.__dict__["contributor_states"] = states
    red = sum(state == ALARM for state, _ in states.values())
    state = ALARM if red else OK
    if state != alarm.state_value:
        reason = f"{red} out of {len(states)} time series evaluated to {ALARM}" if red else f"{len(states)} time series"
        _set_state(backend, alarm, state, reason if red else f"{reason} evaluated to {OK}", "{}", now=now)
    for change in changes:
        summary = f"Alarm contributor updated from {change.old} to {change.new}"
        _record(
            backend, alarm, "AlarmContributorStateUpdate", summary, {"version": "1.0"}, now=now, labels=change.labels
        )
        _act(backend, alarm, change)
    return changes


def contributor_states(alarm: Alarm) -> dict[Labels, tuple[str, str]]:
    """State and reason of each contributor at the last evaluation."""
    states: dict[Labels, tuple[str, str]] = alarm.__dict__.get("contributor_states", {})
    return states


def _act(backend: CloudWatchBackend, alarm: Alarm, change: Change) -> None:
    if not alarm.actions_enabled:
        return
    for arn in actions(alarm, change.new):
        failure = _publish(backend, alarm, change, arn)
        summary = f"Failed to execute action {arn}. Received error: {failure}" if failure else ""
        document = {
            "actionState": "Failed" if failure else "Succeeded",
            "stateUpdateTimestamp": int(change.time.replace(tzinfo=datetime.UTC).timestamp() * 1000),
            "notificationResource": arn,
            "publishedMessage": None if failure else message(backend, alarm, change),
            "error": failure or None,
        }
        kind = "AlarmContributorAction" if change.labels else "Action"
        text = summary or f"Successfully executed action {arn}"
        _record(backend, alarm, kind, text, document, now=change.time, labels=change.labels)


def actions(alarm: Alarm, state: str) -> list[str]:
    by_state = {ALARM: alarm.alarm_actions, OK: alarm.ok_actions, INSUFFICIENT_DATA: alarm.insufficient_data_actions}
    return list(by_state[state])


def _publish(backend: CloudWatchBackend, alarm: Alarm, change: Change, arn: str) -> str:
    """What went wrong, "" if nothing did."""
    topics = sns_backends[backend.account_id][backend.region_name]
    text, title = message(backend, alarm, change), subject(alarm, change)
    try:
        topics.publish(message=text, arn=arn, subject=title)
    except SNSException as error:
        return str(error)
    return ""


def record_configuration(backend: CloudWatchBackend, alarm: Alarm, done: str) -> None:
    """done: created, updated or deleted."""
    summary, now = f'Alarm "{alarm.name}" {done}', alarm.configuration_updated_timestamp
    _record(backend, alarm, "ConfigurationUpdate", summary, {"version": "1.0", "type": done.title()[:-1]}, now=now)


def _record(
    backend: CloudWatchBackend, alarm: Alarm, kind: str, summary: str, document: dict[str, Any],
    *, now: datetime.datetime, labels: Labels = (),
) -> None:  # fmt: skip
    item = {
        "AlarmName": alarm.name,
        "AlarmType": "MetricAlarm",
        "Timestamp": now,
        "HistoryItemType": kind,
        "HistorySummary": summary,
        "HistoryData": json.dumps(document),
    }
    if labels:
        item |= {"AlarmContributorId": contributor_id(labels), "AlarmContributorAttributes": dict(labels)}
    history(backend).append(item)


def history(backend: CloudWatchBackend) -> list[_HistoryItem]:
    """What DescribeAlarmHistory lists, oldest first."""
    items: list[_HistoryItem] = backend.__dict__.setdefault("alarm_history", [])
    return items


MINUTE = 60


def step(now: datetime.datetime | None = None) -> list[tuple[str, Change]]:
    """Evaluates every alarm at the minute of `now` (UTC without a zone); returns names of alarms and their changes."""
    when = now or datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
    return [
        (alarm.name, change)
        for backend in _backends()
        for alarm in list(backend.alarms.values())
        for change in apply(backend, alarm, evaluation.evaluate(backend, alarm, when), when)
    ]


def _backends() -> Iterator[CloudWatchBackend]:
    for regions in list(cloudwatch_backends.values()):
        yield from list(regions.values())


def run(stop: threading.Event) -> None:
    """Until `stop` is set: `step` at the beginning of each minute. A failure is logged, and the next minute comes."""
    while not stop.wait(MINUTE - time.time() % MINUTE):
        try:
            step()
        except Exception:  # the daemon's thread: without it every alarm would stay as it is without a word
            logging.getLogger(__name__).exception("alarms were not evaluated in this minute")


_plain_put = CloudWatchBackend.put_metric_alarm
_plain_set = CloudWatchBackend.set_alarm_state
_plain_delete = CloudWatchBackend.delete_alarms
_STATE = ("state_value", "state_reason", "state_reason_data", "state_updated_timestamp", "contributor_states")


def install() -> None:
    """Makes moto's CloudWatch answer so. Idempotent."""
    CloudWatchBackend.put_metric_alarm = _put_metric_alarm  # type: ignore[method-assign]
    CloudWatchBackend.set_alarm_state = _set_alarm_state  # type: ignore[method-assign]
    CloudWatchBackend.delete_alarms = _delete_alarms  # type: ignore[method-assign]
    CloudWatchResponse.describe_alarm_history = _describe_alarm_history  # type: ignore[attr-defined]
    CloudWatchResponse.describe_alarm_contributors = _describe_alarm_contributors  # type: ignore[attr-defined]


def _put_metric_alarm(self: CloudWatchBackend, *arguments: Any, **options: Any) -> Alarm:
    existing = dict(self.alarms)
    alarm = _plain_put(self, *arguments, **options)
    before = existing.get(alarm.name)
    try:
        evaluation.check(alarm)
        _check_actions(alarm)
    except Unsupported as refusal:
        self.alarms.pop(alarm.name)
        self.alarms.update({alarm.name: before} if before else {})
        raise ValidationError(f"Alarm {alarm.name}: the local region does not evaluate {refusal}") from None
    if before:
        alarm.__dict__.update({name: before.__dict__[name] for name in _STATE if name in before.__dict__})
    else:
        alarm.state_value = INSUFFICIENT_DATA
    record_configuration(self, alarm, "updated" if before else "created")
    return alarm


def _check_actions(alarm: Alarm) -> None:
    for state in (ALARM, OK, INSUFFICIENT_DATA):
        for arn in actions(alarm, state):
            if arn.split(":")[2:3] != ["sns"]:
                raise Unsupported(f"the action {arn}")


def _set_alarm_state(self: CloudWatchBackend, alarm_name: str, reason: str, reason_data: str, state_value: str) -> None:
    """The next evaluation sets the state that the data says."""
    before = dict(self.alarms[alarm_name].__dict__) if alarm_name in self.alarms else {}
    data = reason_data or "{}"
    _plain_set(self, alarm_name, reason, data, state_value)  # it checks the arguments
    alarm = self.alarms[alarm_name]
    alarm.__dict__.update(before)
    if alarm.state_value != state_value:
        now = datetime.datetime.now(datetime.UTC).replace(tzinfo=None)
        change_state(self, alarm, state_value, reason, data, now=now)


def _delete_alarms(self: CloudWatchBackend, alarm_names: list[str]) -> None:
    for alarm in [self.alarms[name] for name in alarm_names if name in self.alarms]:
        record_configuration(self, alarm, "deleted")
    _plain_delete(self, alarm_names)


def _describe_alarm_history(self: CloudWatchResponse) -> ActionResult:
    name, kind = self._get_param("AlarmName"), self._get_param("HistoryItemType")
    start, end = self._get_param("StartDate"), self._get_param("EndDate")
    items = [
        item
        for item in history(self.cloudwatch_backend)
        if name in (None, item["AlarmName"])
        and kind in (None, item["HistoryItemType"])
        and (start is None or item["Timestamp"] >= start)
        and (end is None or item["Timestamp"] <= end)
    ]
    newest_first = self._get_param("ScanBy") != "TimestampAscending"
    shown = items[::-1] if newest_first else items
    return ActionResult({"AlarmHistoryItems": shown[: int(self._get_param("MaxRecords") or 100)]})


def _describe_alarm_contributors(self: CloudWatchResponse) -> ActionResult:
    """The contributors that are in ALARM."""
    alarm = self.cloudwatch_backend.alarms.get(self._get_param("AlarmName"))
    if alarm is None:
        raise ResourceNotFound("Unknown")
    red = [
        {
            "ContributorId": contributor_id(labels),
            "ContributorAttributes": dict(labels),
            "StateReason": reason,
        }
        for labels, (state, reason) in contributor_states(alarm).items()
        if state == ALARM
    ]
    return ActionResult({"AlarmContributors": red})
