"""The table of alarms: each event that needs something done raises one, and its text says what to do."""

from __future__ import annotations

from collections import Counter

import pytest

from gpu_ami.events.reader import parser_module
from gpu_ami.telemetry import alarms, load_alarms

ACTIONS = parser_module("catalogue").Catalogue(policy_path=None).actions
# Nothing to do, and an action that the line itself names: the parser replaces it.
WITHOUT_ALARM = {"IGNORE", "XID_154"}
GROUP = "/ec2/accelerated/accel-event-json"


def test_each_action_of_the_catalogue_raises_one_alarm() -> None:
    raised = Counter(action for alarm in load_alarms() for action in alarm.actions)
    assert set(raised) == set(ACTIONS) - WITHOUT_ALARM
    assert [action for action, count in raised.items() if count > 1] == []


def test_pages_are_for_what_stops_work() -> None:
    """The catalogue ranks actions: what an alarm pages for ranks above what it writes a ticket for."""
    pages = {ACTIONS[a].rank for alarm in load_alarms() if alarm.urgency == "page" for a in alarm.actions}
    tickets = {ACTIONS[a].rank for alarm in load_alarms() if alarm.urgency == "ticket" for a in alarm.actions}
    assert max(tickets) <= 4 and max(pages) == 9
    assert {alarm.urgency for alarm in load_alarms()} == set(alarms.URGENCIES)


@pytest.mark.parametrize("alarm", load_alarms(), ids=lambda alarm: alarm.name)
def test_description_says_what_to_do(alarm: alarms.Alarm) -> None:
    text = alarm.description("/ec2/accelerated/" + "x" * 60)
    assert len(text) <= alarms.DESCRIPTION_CHARACTERS
    assert alarm.meaning in text and f"First: {alarm.first}" in text and f"gpu-ami runbook {alarm.name}" in text
    assert ("aws logs filter-log-events" in text) is (alarm.kind == alarms.EVENTS)
    assert all((alarm.title, alarm.meaning.endswith("."), alarm.first.endswith("."), alarm.commands, alarm.source))


@pytest.mark.parametrize("alarm", alarms.of_kind(alarms.EVENTS), ids=lambda alarm: alarm.name)
def test_pattern_fits_into_a_metric_filter(alarm: alarms.Alarm) -> None:
    assert len(alarm.pattern) <= 1024  # CloudWatch Logs API reference, PutMetricFilter
    assert alarm.pattern.startswith('{ ($.origin = "kernel" || $.kind = "recovery") && (')


def test_code_raises_the_alarm_of_its_action_or_its_own() -> None:
    assert [getattr(alarms.alarm_of_action("IGNORE", code), "name", None) for code in (92, 43)] == [
        "gpu-memory-repair", None,
    ]  # fmt: skip
    assert getattr(alarms.alarm_of_action("RESTART_BM"), "name", None) == "gpu-stop-start"


def test_names_of_metrics_are_unique() -> None:
    assert next(iter(load_alarms())).metric == "GpuApplicationErrorEvents"
    assert len({alarm.metric for alarm in load_alarms()}) == len(load_alarms())
