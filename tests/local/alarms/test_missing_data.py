"""The tables of the CloudWatch user guide, "Configuring how CloudWatch alarms treat missing data"."""

from __future__ import annotations

import pytest

from gpu_ami.local.alarms.missing_data import ALARM, INSUFFICIENT_DATA, OK, TREATMENTS, Decision, Rule, decide

KEPT = None
THREE_OF_THREE = [
    ("0-X-X", OK, OK, OK, OK),
    ("0----", OK, OK, OK, OK),
    ("-----", INSUFFICIENT_DATA, KEPT, ALARM, OK),
    ("0XX-X", ALARM, ALARM, ALARM, ALARM),
    ("--X--", ALARM, KEPT, ALARM, OK),
]
TWO_OF_THREE = [
    ("0-X-X", ALARM, ALARM, ALARM, ALARM),
    ("00X0X", ALARM, ALARM, ALARM, ALARM),
    ("0-X--", OK, OK, ALARM, OK),
    ("----0", OK, OK, ALARM, OK),
    ("---X-", ALARM, KEPT, ALARM, OK),
]
COLUMNS = ("missing", "ignore", "breaching", "notBreaching")


def decided(points: str, rule: Rule) -> Decision:
    return decide([{"0": False, "X": True, "-": None}[point] for point in points], rule)


@pytest.mark.parametrize(("to_alarm", "table"), [(3, THREE_OF_THREE), (2, TWO_OF_THREE)], ids=["3of3", "2of3"])
def test_states_are_those_of_the_tables(to_alarm: int, table: list[tuple[str | None, ...]]) -> None:
    assert set(COLUMNS) == set(TREATMENTS)
    got = [
        (points, *(decided(str(points), Rule(3, to_alarm, column)).state for column in COLUMNS)) for points, *_ in table
    ]
    assert got == table


@pytest.mark.parametrize(("points", "state"), [("----X", KEPT), ("---X-", KEPT), ("---X0", OK), ("--X-0", OK)])
def test_a_young_breach_is_no_alarm_yet(points: str, state: str | None) -> None:
    """ "Avoiding premature transitions to alarm state": 3 of 3."""
    assert decided(points, Rule(3, 3)).state == state


def test_decision_says_what_was_compared() -> None:
    assert decided("00X0X", Rule(3, 2)) == Decision(ALARM, [2, 3, 4], 0)
    assert decided("0-X--", Rule(3, 2, "breaching")) == Decision(ALARM, [0, 2], 1)
