"""A version that was released is told apart from one that does not exist, and a site adds a row for it."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from gpu_ami.errors import UsageError
from gpu_ami.recipes import load_facts
from gpu_ami.recipes.facts import add_row, not_released, released

FACTS = load_facts()
NOTES = {"source": "https://example.com/notes"}


@pytest.mark.parametrize(
    ("component", "version", "day"),
    [
        ("nccl", "2.11.4", "2021-09-08"), ("ofi_nccl", "1.9.0", "2024-04-05"),
        ("nvidia_driver", "470.82.01", "2021-11-02"), ("nvidia_driver", "550.90.12", "2024-09-10"),
        ("efa", "1.42.0", "2025-06-06"), ("efa", "1.28.0", ""),
    ],
)  # fmt: skip
def test_released_version_is_known_as_such(component: str, version: str, day: str) -> None:
    text = released(FACTS, component, version)
    assert text.startswith(f"it was released on {day} (" if day else "it was released (")


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


def test_version_newer_than_the_lists_may_exist() -> None:
    assert not_released(FACTS, "nccl", "9.1.1") == released(FACTS, "nccl", "9.1.1") == ""


def test_every_row_of_the_tables_is_in_the_list_or_newer() -> None:
    """The lists are complete for what the tables have, so a version that is in neither is doubted rightly."""
    for component in ("nccl", "ofi_nccl", "efa"):
        for version in FACTS.releases(component):
            assert not not_released(FACTS, component, version) or released(FACTS, component, version), version


def test_row_is_added_to_the_sites_tables(tmp_path: Path) -> None:
    path = add_row(FACTS, "nccl", "2.11.4", tmp_path, {**NOTES, "cuda": ["11"]}, "2026-11-25")
    assert path == tmp_path / "facts" / "nccl.yml"
    add_row(FACTS, "nccl", "2.13.4", tmp_path, NOTES, "2026-11-25")
    rows = yaml.safe_load(path.read_text())["releases"]
    assert rows["2.11.4"] == {**NOTES, "cuda": ["11"], "date": "2026-11-25", "unverified": True} and "2.13.4" in rows
    site = load_facts(site=tmp_path / "facts")
    assert {"2.11.4", "2.13.4", "2.12.7"} <= set(site.releases("nccl"))


def test_driver_is_added_to_its_branch(tmp_path: Path) -> None:
    for version in ("550.90.12", "550.100"):
        add_row(FACTS, "nvidia_driver", version, tmp_path, NOTES, "2026-11-25")
    releases = load_facts(site=tmp_path / "facts").driver_releases
    assert {"550.90.12", "550.100", "550.163.01"} <= set(releases)
    with pytest.raises(UsageError, match="no row of the branch R460"):
        add_row(FACTS, "nvidia_driver", "460.32.03", tmp_path, NOTES, "2026-11-25")


@pytest.mark.parametrize(
    ("component", "version", "values", "complaint"),
    [
        ("nccl", "2.12.7", NOTES, "is in the tables"), ("nccl", "2.11.4", {}, "a row needs its source"),
        ("ofi_nccl", "1.9.0", NOTES, "expected also tag, commit"), ("bash", "5", NOTES, "no table of releases"),
    ],
)  # fmt: skip
def test_what_is_missing_is_said(
    component: str, version: str, values: dict[str, str], complaint: str, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=complaint):
        add_row(FACTS, component, version, tmp_path, values, "2026-11-25")
