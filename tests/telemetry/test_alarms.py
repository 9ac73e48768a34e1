"""The table of alarms: each event that needs something done raises one, and its text says what to do. Runbooks."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.events import catalogue
from gpu_ami.events.reader import parser_folder, parser_module
from gpu_ami.recipes import URGENCIES
from gpu_ami.telemetry import alarms, find_runbook, load_alarms

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
    assert {alarm.urgency for alarm in load_alarms()} == set(URGENCIES)


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


DATA = parser_folder() / "hwevents" / "data"


def codes() -> list[str]:
    found = []
    for kind in ("xid", "sxid"):
        with (DATA / f"{kind}.csv").open(encoding="utf-8", newline="") as file:
            found += [row[kind] for row in csv.DictReader(file)]
    return found


@pytest.mark.parametrize(
    ("word", "alarm", "first"),
    [
        ("79", "gpu-stop-start", "Stop and start the instance so that EC2 moves it to another host"),
        ("Xid 48", "gpu-reset", "Stop the jobs on GPU PCI_ADDRESS and reboot the instance"),
        ("13", "gpu-application-error", "Restart the application"),
        ("64", "gpu-aws-support", "Take the instance out of service"),
        ("63", "gpu-memory-repair", "Schedule a reset"),
        ("22013", "", "Nothing"),
        ("43", "", "Nothing"),
    ],
)
def test_code_is_answered_by_the_catalogue(word: str, alarm: str, first: str) -> None:
    found = find_runbook(word, GROUP)
    assert found.alarm == alarm and found.first.startswith(first)
    assert bool(found.commands) is bool(alarm)
    assert set(catalogue.explain(word).sources.values()) <= set(found.sources)


def test_every_code_has_a_runbook() -> None:
    """An event that needs something done has commands; one that needs nothing says so."""
    found = {code: find_runbook(code, GROUP) for code in codes()}
    assert len(found) > 500
    idle = {code for code, entry in found.items() if not entry.alarm}
    assert {catalogue.explain(code).action for code in idle} == {"IGNORE", "XID_154"}
    assert [code for code, entry in found.items() if entry.alarm and not (entry.commands and entry.support)] == []


@pytest.mark.parametrize("alarm", load_alarms(), ids=lambda alarm: alarm.name)
def test_alarm_is_found_by_its_name_in_cloudwatch(alarm: alarms.Alarm) -> None:
    for word in (alarm.name, f"gpu-telemetry-{alarm.name}", f"lab-2-{alarm.name}"):
        assert find_runbook(word, GROUP).subject == alarm.name
    text = alarms.runbook_text(find_runbook(alarm.name, GROUP))
    for part in (alarm.meaning, alarm.first, *alarm.commands, alarm.support, alarm.source):
        assert part in text


def test_unknown_word_names_the_alarms() -> None:
    with pytest.raises(UsageError, match="neither an alarm nor an Xid") as error:
        find_runbook("gpu-rest", GROUP)
    assert "gpu-reset" in error.value.details


def test_unknown_code_is_the_catalogues_error() -> None:
    with pytest.raises(UsageError, match="not in the catalogue"):
        find_runbook("999", GROUP)


@pytest.mark.parametrize(
    ("node", "told"),
    [
        ("eks", ["kubectl cordon NODE && kubectl drain NODE", "stop-instances", "start-instances", "kubectl uncordon"]),
        ("ecs", ["--status DRAINING", "stop-instances", "start-instances", "--status ACTIVE"]),
        ("slurm", ['state=drain reason="Xid 79"', "stop-instances", "start-instances", "state=resume"]),
        ("asg", ["terminate-instance-in-auto-scaling-group"]),
    ],
)
def test_runbook_of_a_node_drains_it_first(node: str, told: list[str]) -> None:
    runbook = alarms.on_node(alarms.find_runbook("79", "/group"), node)
    places = [next(i for i, command in enumerate(runbook.commands) if text in command) for text in told]
    assert places == sorted(places) and runbook.sources[-1] == alarms.NODES[node].source
    assert any("ec2 stop-instances" in command for command in runbook.commands) == (node != "asg")
    application = alarms.find_runbook("31", "/group")  # the job's own fault: the node stays in service
    assert alarms.on_node(application, node) == application


def test_runbook_of_a_code_says_what_its_alarm_says() -> None:
    alarm = alarms.find_runbook("gpu-stop-start", "/group")
    assert alarm.first in alarms.find_runbook("79", "/group").first and "Auto Scaling" in alarm.first
