"""Versions: order, branches, what a constraint allows, what is near."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.facts.versions import (
    around,
    at_least,
    at_most,
    branch,
    matching,
    nearest_branch_first,
    nearest_first,
    parts,
)

KNOWN = ["2.12.7", "2.16.2", "2.18.1", "2.31.2"]


def test_parts_are_numbers_whatever_separates_them() -> None:
    assert (parts("550.163.01"), parts("2020.0-088")) == ((550, 163, 1), (2020, 0, 88))
    assert (branch("550.163.01"), branch("12.4")) == ("550", "12")


def test_bound_that_is_a_branch_holds_for_all_of_it() -> None:
    assert at_least("580.65.06", "580") and not at_least("575.57.08", "580")
    assert at_most("580.178.04", "580") and not at_most("590.1", "580")


@pytest.mark.parametrize(
    "constraint, allowed",
    [("2.16.2", ["2.16.2"]), ("2", KNOWN[::-1]), ("2.16", ["2.16.2"]), ("newest", KNOWN[::-1]), ("3", [])],
)
def test_constraint_allows_itself_its_branch_or_all(constraint: str, allowed: list[str]) -> None:
    assert matching(constraint, KNOWN) == allowed


def test_order_by_nearness() -> None:
    assert nearest_first("2.16.2", KNOWN) == ["2.16.2", "2.18.1", "2.12.7", "2.31.2"]
    assert nearest_branch_first("551", ["550.54.14", "550.163.01", "560.35.03"])[0] == "550.163.01"


@pytest.mark.parametrize(
    "version, text",
    [
        ("2.12.12", "nearest below 2.12.7, above 2.16.2; newest 2.31.2"),
        ("1", "nearest above 2.12.7; newest 2.31.2"),
        ("3", "nearest below 2.31.2; newest 2.31.2"),
    ],
)
def test_suggestions_are_the_neighbours_and_the_newest(version: str, text: str) -> None:
    assert around(version, KNOWN) == text


@pytest.mark.parametrize(
    "version, floor, expected",
    [
        ("580.65.06", "580.65.06", True),
        ("580.65.06", "580", True),
        ("575.57.08", "580", False),
        ("12.10", "12.9", True),
    ],
)
def test_at_least(version: str, floor: str, expected: bool) -> None:
    assert at_least(version, floor) is expected


@pytest.mark.parametrize(
    "version, ceiling, expected",
    [("580.178.04", "580", True), ("590.44.01", "580", False), ("12.9", "12", True), ("13.0", "12", False)],
)
def test_at_most(version: str, ceiling: str, expected: bool) -> None:
    assert at_most(version, ceiling) is expected


def test_constraints_on_driver_releases() -> None:
    known = ["550.54.14", "550.163.01", "580.65.06", "580.105.08"]
    assert matching("580", known) == ["580.105.08", "580.65.06"]
    assert matching("550.163.01", known) == ["550.163.01"]
    assert matching("newest", known)[0] == "580.105.08"
    assert matching("58", known) == []
    assert nearest_first("550.163.01", known)[:2] == ["550.163.01", "580.65.06"]
    assert nearest_branch_first("551.1", known)[:3] == ["550.163.01", "550.54.14", "580.105.08"]
