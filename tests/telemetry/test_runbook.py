"""Runbooks: of an alarm, of an alarm by its name in CloudWatch, and of each code of the catalogue."""

from __future__ import annotations

import csv

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.events import catalogue
from gpu_ami.events.reader import parser_folder
from gpu_ami.telemetry import alarms, find_runbook, load_alarms

GROUP = "/ec2/accelerated/accel-event-json"
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
