"""A machine of report.html: what its template is given."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_ami.report.page_machine import CheckView, MachineView, bar
from tests.report.examples import a_check, a_host, a_report
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
