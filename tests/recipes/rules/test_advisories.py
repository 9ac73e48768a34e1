"""Security bulletins: which of them a version lacks the fix of."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.rules.advisories import SEVERITIES, open_advisories

FACTS = load_facts()


@pytest.mark.parametrize(
    ("component", "version", "cves"),
    [
        ("nvidia_driver", "580.126.09", ["CVE-2026-24187", "CVE-2026-47501"]),
        ("nvidia_driver", "580.159.03", ["CVE-2026-47501"]),
        ("nvidia_driver", "580.178.04", []),
        ("nvidia_driver", "620.70.06", []),  # a branch that no bulletin names
        ("container_toolkit", "1.17.7", ["CVE-2025-23266"]),
        ("container_toolkit", "1.17.8", []),
        ("cuda", "13.0", []),
    ],
)
def test_a_version_below_the_fix_of_its_branch_is_named(component: str, version: str, cves: list[str]) -> None:
    context = Mock(facts=FACTS, label=str)
    assert [row["cve"] for _, row in open_advisories(context, component, version)] == cves


def test_every_severity_is_one_that_a_recipe_can_name() -> None:
    assert {row["severity"] for row in FACTS.advisories["rows"].values()} <= set(SEVERITIES)
