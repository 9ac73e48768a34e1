"""Versions: order, branches, what a constraint allows, what is near.

A version that was released is told apart from one that does not exist, and a site adds a row (facts/additions.py).
"""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_ami.errors import UsageError
from gpu_ami.recipes import load_facts
from gpu_ami.recipes.facts import add_row, not_released, released
from gpu_ami.recipes.facts.tables import (
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


FACTS = load_facts()
NOTES = {"source": "https://example.com/notes"}


@pytest.mark.parametrize(
    ("component", "version", "when"),
    [
        ("nccl", "2.11.4", " on 2021-09-08 ("), ("ofi_nccl", "1.9.0", " on 2024-04-05 ("),
        ("nvidia_driver", "470.82.01", " on 2021-11-02 ("), ("nvidia_driver", "550.90.12", " on 2024-09-10 ("),
        ("nvidia_driver", "460.91.03", " on 2021-07-20 ("), ("efa", "1.42.0", " on 2025-06-06 ("),
        ("efa", "1.28.0", " on or before 2023-10-23 ("), ("efa", "1.23.1", " in 2023-06 ("),
    ],
)  # fmt: skip
def test_released_version_is_known_as_such(component: str, version: str, when: str) -> None:
    told = released(FACTS, component, version)
    assert told.startswith(f"it was released{when}")


@pytest.mark.parametrize(
    ("component", "version"),
    [("nccl", "2.11.5"), ("efa", "1.28.7"), ("nvidia_driver", "550.90.99"), ("ofi_nccl", "1.9.9")],
)
def test_version_that_does_not_exist(component: str, version: str) -> None:
    assert released(FACTS, component, version) == ""
    assert not_released(FACTS, component, version).startswith("no such release is known up to 20")


def test_branch_with_releases_that_the_tables_lack_exists() -> None:
    assert released(FACTS, "nvidia_driver", "460").startswith("releases of it exist, up to 460.106.00 (")
    assert not_released(FACTS, "nvidia_driver", "460") == ""


def test_version_that_may_have_come_since_is_not_said_not_to_exist() -> None:
    """The list of drivers is whole until a day; single later ones are in it, too."""
    row = FACTS.released["components"]["nvidia_driver"]
    assert "620.70.06" in row["dated"] and str(row["until"]) < "2026-04"
    assert not_released(FACTS, "nvidia_driver", "610.60.01") == ""


def test_version_newer_than_the_lists_may_exist() -> None:
    assert not_released(FACTS, "nccl", "9.1.1") == released(FACTS, "nccl", "9.1.1") == ""


def test_every_row_of_the_tables_is_in_the_list_or_newer() -> None:
    """The lists are complete for what the tables have, so a version that is in neither is doubted rightly."""
    for component in ("nccl", "ofi_nccl", "efa"):
        for version in FACTS.releases(component):
            assert not not_released(FACTS, component, version) or released(FACTS, component, version), version


def test_row_is_added_to_the_sites_tables(tmp_path: Path) -> None:
    path = add_row(FACTS, "nccl", "2.11.4", tmp_path, {**NOTES, "cuda": ["11"]}, today="2026-11-25")
    assert path == tmp_path / "facts" / "nccl.yml"
    add_row(FACTS, "nccl", "2.13.4", tmp_path, NOTES, today="2026-11-25")
    rows = yaml.safe_load(path.read_text())["releases"]
    assert rows["2.11.4"] == {**NOTES, "cuda": ["11"], "date": "2026-11-25", "unverified": True} and "2.13.4" in rows
    site = load_facts(site=tmp_path / "facts")
    assert {"2.11.4", "2.13.4", "2.12.7"} <= set(site.releases("nccl"))


def test_driver_is_added_to_its_branch(tmp_path: Path) -> None:
    for version in ("550.90.12", "550.100"):
        add_row(FACTS, "nvidia_driver", version, tmp_path, NOTES, today="2026-11-25")
    releases = load_facts(site=tmp_path / "facts").driver_releases
    assert {"550.90.12", "550.100", "550.163.01"} <= set(releases)
    with pytest.raises(UsageError, match="R460 is a new branch; expected also kind, end_of_support, highest_cuda"):
        add_row(FACTS, "nvidia_driver", "460.32.03", tmp_path, NOTES, today="2026-11-25")


def test_new_branch_kernel_and_eks_version_are_added(tmp_path: Path) -> None:
    branch_keys = {**NOTES, "kind": "LTSB", "end_of_support": "2030-09", "highest_cuda": 13.9}
    add_row(FACTS, "nvidia_driver", "650.70.06", tmp_path, branch_keys, today="2026-11-25")
    add_row(FACTS, "kernel", "7.2", tmp_path, {**NOTES, "os": "ubuntu2404"}, today="2026-11-25")
    add_row(FACTS, "eks", "1.39", tmp_path, {**NOTES, "kernel": 6.24}, today="2026-11-25")
    site = load_facts(site=tmp_path / "facts")
    row = site.driver_releases["650.70.06"]
    assert (row["kind"], row["end_of_support"], row["highest_cuda"]) == ("LTSB", "2030-09", "13.9")
    assert site.operating_systems["ubuntu2404"]["kernels"][-1] == "7.2"
    assert site.node_families["eks"]["versions"]["1.39"]["kernel"] == "6.24"
    with pytest.raises(UsageError, match="expected also os"):
        add_row(FACTS, "kernel", "7.2", tmp_path, NOTES, today="2026-11-25")
    with pytest.raises(UsageError, match="not in the facts; did you mean ubuntu2404"):
        add_row(FACTS, "kernel", "7.2", tmp_path, {**NOTES, "os": "ubuntu2405"}, today="2026-11-25")


def test_package_of_a_new_toolkit_is_not_its_neighbours(tmp_path: Path) -> None:
    add_row(FACTS, "cuda", "13.6", tmp_path, {**NOTES, "minimum_driver": "625.10.03"}, today="2026-11-25")
    add_row(FACTS, "cuda", "13.7", tmp_path, {**NOTES, "package": "13.7.1-1"}, today="2026-11-25")
    path = add_row(FACTS, "cudnn", "9.30.0", tmp_path, NOTES, today="2026-11-25")
    site = load_facts(site=path.parent)
    assert [site.cuda["releases"][name]["package"] for name in ("13.6", "13.7")] == ["13.6.*", "13.7.1-1"]
    assert site.cudnn["releases"]["9.30.0"]["full"] == "9.30.0*"


@pytest.mark.parametrize(
    ("component", "version", "values", "complaint"),
    [
        ("nccl", "2.12.7", NOTES, "is in the tables"), ("nccl", "2.11.4", {}, "a row needs its source"),
        ("ofi_nccl", "1.9.0", NOTES, "expected also tag, commit"), ("bash", "5", NOTES, "no table of releases"),
        ("gdrcopy", "2.7", NOTES, "expected also tag, commit"),
        ("gds", "banana", NOTES, "expected a whole version, such as 2.30.1, got 'banana'"),
        ("cuda", "13.6 ", NOTES, "got '13.6 '"), ("cuda", "14", NOTES, "such as 13.5, got '14'"),
        ("efa", "../../etc/passwd", NOTES, "such as 1.51.0"), ("nvidia_driver", "640", NOTES, "such as 620.70.06"),
        ("kernel", "seven", {**NOTES, "os": "ubuntu2404"}, "such as 7.2, got 'seven'"),
        ("eks", "1.40", {**NOTES, "kernel": "new"}, "kernel: expected a whole version, such as 7.2, got 'new'"),
        (
            "nvidia_driver", "650.70.06", {**NOTES, "kind": "PB", "end_of_support": "soon", "highest_cuda": "13.9"},
            "expected a month, such as 2029-09, got soon",
        ),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(
    component: str, version: str, values: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint):
        add_row(FACTS, component, version, tmp_path, values, today="2026-11-25")
