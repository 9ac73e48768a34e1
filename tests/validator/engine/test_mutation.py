"""Checks that may change their host keep their order; the others run concurrently."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.validator.conftest import Run

ORDERED = Path(__file__).parents[1] / "data" / "ordered.py"


@pytest.mark.parametrize("way", [(), ("--serial",)])
def test_changes_of_a_check_are_visible_to_the_next(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, way: tuple[str, ...]
) -> None:
    """Nothing is marked: which checks change something is read from what they say."""
    place = tmp_path / "place"
    monkeypatch.setenv("ORDERED_PLACE", str(place))
    outcome = run(ORDERED, *way)
    assert set(outcome.verdicts.values()) == {"PASS"}, outcome.text
    assert len(outcome.verdicts) == 16
    assert not place.exists()
