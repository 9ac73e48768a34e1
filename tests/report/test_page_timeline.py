"""The timeline of report.html: lanes by machine, rows without overlap, an axis, and a panel for each hop."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_ami.report import page_timeline
from gpu_ami.report.document import Stage
from tests.report.examples import a_check, a_host, a_report, everything
from validator.results import Hop

STAGES = (
    Stage("plan x", 0, 10.0, "done", 0.0),
    Stage("base image", 1, 20.0, "done", 15.0),
    Stage("build x", 0, 90.0, "done", 10.0),
    Stage("launch g5.12xlarge", 0, 5.0, "done", 100.0, "g5.12xlarge"),
    Stage("check g5.12xlarge after reboot", 0, 95.0, "failed", 105.02, "g5.12xlarge"),
    Stage("boot p4d.24xlarge", 0, 40.0, "done", 100.0, "p4d.24xlarge"),
)


def test_each_machine_has_a_lane_on_the_same_axis() -> None:
    report = replace(a_report(a_host(), a_host("p4d.24xlarge")), stages=STAGES)
    drawn = page_timeline.timeline(report)
    assert drawn
    assert [lane.name for lane in drawn.lanes] == ["run", "g5.12xlarge", "p4d.24xlarge"]
    assert [[bar.name for bar in row] for row in drawn.lanes[0].rows] == [["plan x", "build x"], ["base image"]]
    (row,) = drawn.lanes[1].rows
    assert [(bar.name, bar.kind, bar.left) for bar in row] == [
        ("launch", "boot", "50.00%"), ("✗ check after reboot", "check FAIL", "52.50%"),
    ]  # fmt: skip
    assert "failed after 95.0 s from 105.0 s" in drawn.lanes[1].text
    assert list(drawn.legend) == ["prepare", "build", "boot", "check"]


def test_a_report_without_starts_has_no_timeline() -> None:
    assert page_timeline.timeline(everything()) is None
    assert [bar.name for bar in page_timeline.stage_bars(everything())] == ["boot g5.12xlarge", "prove ami-1"]
    assert page_timeline.timeline(replace(a_report(), stages=())) is None


def test_stages_of_a_machine_that_the_report_does_not_have_are_drawn() -> None:
    """A run that was cut, or shards."""
    drawn = page_timeline.timeline(replace(a_report(), stages=STAGES))
    assert drawn and [lane.name for lane in drawn.lanes] == ["run", "g5.12xlarge", "p4d.24xlarge"]


@pytest.mark.parametrize(
    ("seconds", "labels"),
    [
        (4.0, ["0", "1 s", "2 s", "3 s", "4 s"]),
        (75.0, ["0", "15 s", "30 s", "45 s", "1 min", "75 s"]),
        (2000.0, ["0", "10 min", "20 min", "30 min"]),
        (500_000.0, ["0", "1440 min", "2880 min", "4320 min", "5760 min", "7200 min"]),
    ],
)
def test_axis_has_few_round_ticks(seconds: float, labels: list[str]) -> None:
    drawn = page_timeline.timeline(replace(a_report(), stages=(Stage("plan", 0, seconds, "done", 0.0),)))
    assert drawn and [tick.label for tick in drawn.ticks] == labels


def test_a_panel_for_each_hop_with_each_machine_and_restart() -> None:
    first = a_check("logs", hops=(Hop("a → b", 1.0), Hop("b → c", 3.0)))
    again = a_check("logs", id="logs::test_it@reboot", after="reboot", hops=(Hop("a → b", 2.0),))
    slower = a_check(
        "xid", id="xid::test_drill", hops=(Hop("a → b", 1.5), Hop("b → c", -0.5))
    )  # clocks differ a little
    report = a_report(a_host("g5.12xlarge", first, slower, again), a_host("p4d.24xlarge", first))
    panels = page_timeline.hop_panels(report)
    assert [panel.hop for panel in panels] == ["a → b", "b → c"]
    assert [(bar.name, bar.label, bar.width) for bar in panels[0].bars] == [
        ("g5.12xlarge", "1.50 s", "75.00%"),
        ("g5.12xlarge after reboot", "2.00 s", "100.00%"),
        ("p4d.24xlarge", "1.00 s", "50.00%"),
    ]
