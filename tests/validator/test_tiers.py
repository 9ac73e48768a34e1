"""The tiers: each says what it proves and what it leaves open; a check of an unknown tier is refused."""

from __future__ import annotations

import pytest

from tests.validator.conftest import Run
from validator import tiers

UNKNOWN = """
import pytest
@pytest.mark.tier("T9")
def test_of_files(host):
    assert host.run("true").rc == 0
"""


def test_every_tier_names_what_it_does_not_prove() -> None:
    assert tiers.NAMES == ("T0", "T1", "T2", "T3", "T4")
    assert all(tier.proves and tier.does_not_prove for tier in tiers.TIERS)
    assert len({tier.title for tier in tiers.TIERS}) == len({tier.proves for tier in tiers.TIERS}) == 5


def test_tier_that_does_not_exist_is_refused(run: Run) -> None:
    with pytest.raises(
        AssertionError, match="expected a tier of T0, T1, T2, T3, T4, got 'T9'"
    ):  # there is no checks.json then
        run(UNKNOWN)
