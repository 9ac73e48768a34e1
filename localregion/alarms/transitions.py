"""Changes of alarm states: the state, the history, and the actions.

Actions happen on transitions alone, and not where they are disabled (CloudWatch user guide, "Alarm actions"); a
Metrics Insights alarm with contributors notifies for each contributor.

Evaluates all alarms: once a minute in the region's daemon, or step by step in a test.
"""

from __future__ import annotations

import datetime
import json
import logging
import threading
import time
from collections.abc import Iterator
from typing import Any

from moto.cloudwatch.models import Alarm, CloudWatchBackend, cloudwatch_backends
from moto.sns.exceptions import SNSException
from moto.sns.models import sns_backends

from localregion.alarms import evaluation, notifications
from localregion.alarms.datapoints import Labels
from localregion.alarms.evaluation import ALARM, INSUFFICIENT_DATA, OK, Outcome
from localregion.alarms.notifications import Change

_HistoryItem = dict[str, Any]


def apply(backend: CloudWatchBackend, alarm: Alarm, outcomes: list[Outcome], now: datetime.datetime) -> list[Change]:
    """Changes the alarm's state as the outcomes say, and carries out the actions; returns the changes."""
    if evaluation.is_grouped(alarm):
        return _apply_contributors(backend, alarm, outcomes, now)
    [outcome] = outcomes
    if outcome.state in (None, alarm.state_value):
        return []
    return [change_state(backend, alarm, str(outcome.state), outcome.reason, json.dumps(outcome.data), now)]


def change_state(
    backend: CloudWatchBackend, alarm: Alarm, state: str, reason: str, data: str, now: datetime.datetime
) -> Change:
    """Sets the state, writes history, and carries out the actions of the new state."""
    change = _set_state(backend, alarm, state, reason, data, now)
    _act(backend, alarm, change)
    return change


def _set_state(
    backend: CloudWatchBackend, alarm: Alarm, state: str, reason: str, data: str, now: datetime.datetime
) -> Change:
    change = Change(alarm.state_value, state, reason, now)
    old = _described(alarm.state_value, alarm.state_reason, alarm.state_reason_data)
    alarm.state_value, alarm.state_reason, alarm.state_reason_data = state, reason, data
    alarm.state_updated_timestamp = now
    summary = f"Alarm updated from {change.old} to {change.new}"
    document = {"version": "1.0", "oldState": old, "newState": _described(state, reason, data)}
    _record(backend, alarm, "StateUpdate", summary, document, now)
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
        _set_state(backend, alarm, state, reason if red else f"{reason} evaluated to {OK}", "{}", now)
    for change in changes:
        summary = f"Alarm contributor updated from {change.old} to {change.new}"
        _record(backend, alarm, "AlarmContributorStateUpdate", summary, {"version": "1.0"}, now, change.labels)
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
            "publishedMessage": None if failure else notifications.message(backend, alarm, change),
            "error": failure or None,
        }
        kind = "AlarmContributorAction" if change.labels else "Action"
        text = summary or f"Successfully executed action {arn}"
        _record(backend, alarm, kind, text, document, change.time, change.labels)


def actions(alarm: Alarm, state: str) -> list[str]:
    by_state = {ALARM: alarm.alarm_actions, OK: alarm.ok_actions, INSUFFICIENT_DATA: alarm.insufficient_data_actions}
    return list(by_state[state])


def _publish(backend: CloudWatchBackend, alarm: Alarm, change: Change, arn: str) -> str:
    """What went wrong, "" if nothing did."""
    topics = sns_backends[backend.account_id][backend.region_name]
    text, title = notifications.message(backend, alarm, change), notifications.subject(alarm, change)
    try:
        topics.publish(message=text, arn=arn, subject=title)
    except SNSException as error:
        return str(error)
    return ""


def record_configuration(backend: CloudWatchBackend, alarm: Alarm, done: str) -> None:
    """done: created, updated or deleted."""
    summary, now = f'Alarm "{alarm.name}" {done}', alarm.configuration_updated_timestamp
    _record(backend, alarm, "ConfigurationUpdate", summary, {"version": "1.0", "type": done.title()[:-1]}, now)


def _record(
    backend: CloudWatchBackend, alarm: Alarm, kind: str, summary: str, document: dict[str, Any],
    now: datetime.datetime, labels: Labels = (),
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
        item |= {"AlarmContributorId": notifications.contributor_id(labels), "AlarmContributorAttributes": dict(labels)}
    history(backend).append(item)


def history(backend: CloudWatchBackend) -> list[_HistoryItem]:
    """What DescribeAlarmHistory lists, oldest first."""
    items: list[_HistoryItem] = backend.__dict__.setdefault("alarm_history", [])
    return items


_MINUTE = 60


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
    while not stop.wait(_MINUTE - time.time() % _MINUTE):
        try:
            step()
        except Exception:  # the daemon's thread: without it every alarm would stay as it is without a word
            logging.getLogger(__name__).exception("alarms were not evaluated in this minute")
