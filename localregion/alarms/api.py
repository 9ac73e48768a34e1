"""CloudWatch's calls about alarms, where moto answers otherwise than AWS.

PutMetricAlarm: a new alarm is INSUFFICIENT_DATA, a changed one keeps its state (API reference). What is not evaluated
here is refused by its name, because the alarm would never change. SetAlarmState carries out the actions.
DescribeAlarmHistory and DescribeAlarmContributors exist.
"""

from __future__ import annotations

import datetime
from typing import Any

from moto.cloudwatch.exceptions import ResourceNotFound, ValidationError
from moto.cloudwatch.models import Alarm, CloudWatchBackend
from moto.cloudwatch.responses import CloudWatchResponse
from moto.core.responses import ActionResult

from localregion.alarms import evaluation, notifications, transitions
from localregion.alarms.evaluation import ALARM, INSUFFICIENT_DATA, OK
from localregion.alarms.metric_math import Unsupported

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
    transitions.record_configuration(self, alarm, "updated" if before else "created")
    return alarm


def _check_actions(alarm: Alarm) -> None:
    for state in (ALARM, OK, INSUFFICIENT_DATA):
        for arn in transitions.actions(alarm, state):
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
        transitions.change_state(self, alarm, state_value, reason, data, now)


def _delete_alarms(self: CloudWatchBackend, alarm_names: list[str]) -> None:
    for alarm in [self.alarms[name] for name in alarm_names if name in self.alarms]:
        transitions.record_configuration(self, alarm, "deleted")
    _plain_delete(self, alarm_names)


def _describe_alarm_history(self: CloudWatchResponse) -> ActionResult:
    name, kind = self._get_param("AlarmName"), self._get_param("HistoryItemType")
    start, end = self._get_param("StartDate"), self._get_param("EndDate")
    items = [
        item
        for item in transitions.history(self.cloudwatch_backend)
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
            "ContributorId": notifications.contributor_id(labels),
            "ContributorAttributes": dict(labels),
            "StateReason": reason,
        }
        for labels, (state, reason) in transitions.contributor_states(alarm).items()
        if state == ALARM
    ]
    return ActionResult({"AlarmContributors": red})
