"""A machine of report.html: what its template is given.

The timeline of report.html: lanes by machine, rows without overlap, an axis, and a panel for each hop.
Values as templates print them.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_ami.foreign_text import visible
from gpu_ami.report import page, templating
from gpu_ami.report.document import Stage
from gpu_ami.report.page_machine import CheckView, MachineView, bar
from gpu_ami.report.templating import short
from tests.report.examples import a_check, a_host, a_report, everything
from validator.results import Hop


def view(*further: object, **verdicts: str) -> MachineView:
    return MachineView(a_host("g5.12xlarge", *further, **verdicts), a_report(), "m1")  # type: ignore[arg-type]


def test_worst_role_comes_first_with_its_red_checks() -> None:
    roles = view(a_check("boot", "FLAKY", id="boot::test_b"), xid="FAIL").roles
    assert [role.name for role in roles[:2]] == ["xid", "boot"]
    assert (len(roles[1].red), len(roles[1].passed), roles[1].count) == (1, 1, 2)
    assert roles[0].worst == "FAIL" and roles[-1].worst == "PASS"


@pytest.mark.parametrize(
    ("changes", "captions"),
    [
        ({}, []),
        ({"observed": "x" * 97, "planned": "x" * 97}, ["observed as planned"]),
        ({"observed": "x" * 97}, ["observed", "planned"]),
        ({"verdict": "FAIL", "observed": 2, "planned": 1}, ["observed", "planned"]),
        ({"verdict": "FAIL", "observed": None, "planned": None}, []),
    ],
)
def test_values_are_shown_whole_where_the_line_does_not_show_them(
    changes: dict[str, object], captions: list[str]
) -> None:
    check = CheckView(replace(a_check("boot"), **changes), "a")  # type: ignore[arg-type]
    assert [caption for caption, _ in check.figures] == captions


def test_hop_begins_where_an_earlier_one_ended() -> None:
    hops = (Hop("kernel → file", 1.0), Hop("file → agent", 3.0), Hop("kernel → agent", 4.0))
    (shown,) = view(a_check("logs", hops=hops)).hops
    assert [(bar.left, bar.width) for bar in shown.bars] == [
        ("0.00%", "25.00%"),
        ("25.00%", "75.00%"),
        ("0.00%", "100.00%"),
    ]


def test_boot_stages_follow_each_other() -> None:
    assert [(bar.name, bar.left) for bar in view().boot] == [
        ("running", "0.00%"),
        ("ssh", "6.67%"),
        ("systemd", "66.67%"),
    ]


def test_bar_of_nothing_has_no_length() -> None:
    assert (bar("x", "0 s", 0.0, 0.0, 0.0).left, bar("x", "0 s", 0.0, 0.0, 0.0).width) == ("0.00%", "0.00%")


def test_observed_event_is_shown_as_one() -> None:
    event = {"kind": "xid", "code": 31}
    events = list(view(a_check("logs", observed=event, promise="It is seen.")).events)
    assert [entry.promise for entry in events] == ["It is seen.", "xid keeps it."] or len(events) == 2
    assert dict(next(entry for entry in events if entry.promise == "It is seen.").fields) == event


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
    drawn = page.timeline(report)
    assert drawn
    assert [lane.name for lane in drawn.lanes] == ["run", "g5.12xlarge", "p4d.24xlarge"]
    assert [[bar.name for bar in row] for row in drawn.lanes[0].rows] == [["plan x", "build x"], ["base image"]]
    (row,) = drawn.lanes[1].rows
    assert [(bar.name, bar.kind, bar.left) for bar in row] == [
        ("launch", "boot", "50.00%"), ("✗ check after reboot", "check FAIL", "52.50%"),
    ]  # fmt: skip
    assert "failed after 95.0 s from 105.0 s" in drawn.lanes[1].text
    assert list(drawn.legend) == ["prepare", "build", "boot", "check"]


def test_timeline_names_what_ran_the_machines() -> None:
    """The same proof takes 1.4 times as long with an older QEMU."""
    report = replace(a_report(a_host()), stages=STAGES, hypervisor="QEMU 10.0.2 (Debian 1:10.0.2+ds-2)")
    assert "Machines run in QEMU 10.0.2 (Debian 1:10.0.2+ds-2)." in page.page(report, None, ())
    assert "Machines run in" not in page.page(replace(report, hypervisor=""), None, ())


def test_a_report_without_starts_has_no_timeline() -> None:
    assert page.timeline(everything()) is None
    assert [bar.name for bar in page.stage_bars(everything())] == ["boot g5.12xlarge", "prove ami-1"]
    assert page.timeline(replace(a_report(), stages=())) is None


def test_stages_of_a_machine_that_the_report_does_not_have_are_drawn() -> None:
    """A run that was cut, or shards."""
    drawn = page.timeline(replace(a_report(), stages=STAGES))
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
    drawn = page.timeline(replace(a_report(), stages=(Stage("plan", 0, seconds, "done", 0.0),)))
    assert drawn and [tick.label for tick in drawn.ticks] == labels


def test_a_panel_for_each_hop_with_each_machine_and_restart() -> None:
    first = a_check("logs", hops=(Hop("a → b", 1.0), Hop("b → c", 3.0)))
    again = a_check("logs", id="logs::test_it@reboot", after="reboot", hops=(Hop("a → b", 2.0),))
    slower = a_check(
        "xid", id="xid::test_drill", hops=(Hop("a → b", 1.5), Hop("b → c", -0.5))
    )  # clocks differ a little
    report = a_report(a_host("g5.12xlarge", first, slower, again), a_host("p4d.24xlarge", first))
    panels = page.hop_panels(report)
    assert [panel.hop for panel in panels] == ["a → b", "b → c"]
    assert [(bar.name, bar.label, bar.width) for bar in panels[0].bars] == [
        ("g5.12xlarge", "1.50 s", "75.00%"),
        ("g5.12xlarge after reboot", "2.00 s", "100.00%"),
        ("p4d.24xlarge", "1.00 s", "50.00%"),
    ]


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("<b>&\"'", "<b>&\"'"),
        ("\x1b[1;31mFAIL\x1b[0m", "FAIL"),
        ("a\x1b]0;x\x07\x00\rb\x7f", "a⟨U+001B⟩]0;x⟨U+0007⟩⟨U+0000⟩⟨U+000D⟩b⟨U+007F⟩"),
        ("one\r\ntwo\tthree", "one\ntwo\tthree"),
        ("exe.\u202egnp \ud800", "exe.⟨U+202E⟩gnp ⟨U+D800⟩"),
        (None, "None"),
    ],
)
def test_invisible_characters_are_written_out(value: object, shown: str) -> None:
    assert visible(value) == shown


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ([], "none"),
        ({}, "none"),
        ((), "none"),
        (None, "nothing"),
        ("a\n b", "a b"),
        ([1, "é"], '[1, "é"]'),
        ("x" * 97, "x" * 95 + "…"),
    ],
)
def test_short(value: object, shown: str) -> None:
    assert short(value) == shown


@pytest.mark.parametrize(
    ("value", "cell"), [("a|b\nc", "a\\|b c"), (None, "null"), ({"a": 1}, '{"a": 1}'), ("x" * 121, "x" * 119 + "…")]
)
def test_cell_of_a_markdown_table(value: object, cell: str) -> None:
    assert templating.cell(value) == cell


def test_html_and_markdown_templates_escape() -> None:
    for name, shown in (("x.html.j2", "&lt;b&gt;"), ("x.md.j2", "&lt;b>")):
        template = templating.jinja_environment(name.endswith(".md.j2")).overlay()
        template.loader = __import__("jinja2").DictLoader({name: "{{ value }}"})
        assert template.get_template(name).render(value="<b>") == shown


def test_every_template_is_there_and_used() -> None:
    names = {path.name for path in templating.TEMPLATES.iterdir()}
    texts = "".join(path.read_text() for path in templating.TEMPLATES.iterdir())
    entries = {"page.html.j2", "certificate.md.j2", "job_summary.md.j2", "diff.html.j2", "matrix.md.j2"}
    entries.add("dashboard.html.j2")  # gpu_ami/telemetry/page.py
    assert entries <= names
    assert all(f'"{name}"' in texts for name in names - entries)
