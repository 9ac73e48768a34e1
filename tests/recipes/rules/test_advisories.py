"""Security bulletins: which of them a version lacks the fix of."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.rules.advisories import SEVERITIES, notes, open_advisories

FACTS = load_facts()


@pytest.mark.parametrize(
    ("component", "version", "cves"),
    [
        ("nvidia_driver", "580.126.09", ["CVE-2026-24187", "CVE-2026-47501"]),
        ("nvidia_driver", "580.159.03", ["CVE-2026-47501"]),
        ("nvidia_driver", "580.178.04", []),
        ("nvidia_driver", "620.70.06", []),  # a branch that no bulletin names
        ("nvidia_driver", "570.172.08", ["CVE-2025-23282", "CVE-2025-33220", "CVE-2026-24187"]),  # R570 ended 2026-02
        ("nvidia_driver", "550.163.01", ["CVE-2025-23279", "CVE-2025-23282", "CVE-2025-33220", "CVE-2026-24187"]),
        ("nvidia_driver", "610.57.04", []),
        ("container_toolkit", "1.17.7", ["CVE-2025-23266", "CVE-2026-24260"]),
        ("container_toolkit", "1.17.8", ["CVE-2026-24260"]),
        ("container_toolkit", "1.19.1", []),
        ("cuda", "13.0", []),
    ],
)
def test_a_version_below_the_fix_of_its_branch_is_named(component: str, version: str, cves: list[str]) -> None:
    context = Mock(facts=FACTS, label=str)
    assert [row["cve"] for *_, row in open_advisories(context, component, version)] == cves


def test_every_severity_is_one_that_a_recipe_can_name() -> None:
    assert {row["severity"] for row in FACTS.advisories["rows"].values()} <= set(SEVERITIES)


def test_a_branch_that_had_ended_has_no_fix() -> None:
    context = Mock(facts=FACTS, label=str)
    (first, *_) = open_advisories(context, "nvidia_driver", "550.163.01")
    name, text, _ = first
    assert name == "nvidia-5670" and text.endswith("is fixed in no release of R550, whose support had ended")


def test_a_plan_has_one_note_for_each_component() -> None:
    context = Mock(facts=FACTS, label=str)
    (note,) = notes(context, {"nvidia_driver": "580.126.09", "container_toolkit": "1.19.1"})
    assert note == (
        "nvidia_driver 580.126.09 lacks fixes of 2 security bulletins: CVE-2026-24187 (high) is fixed in 580.159.03 "
        "(nvidia-5821); CVE-2026-47501 (high) is fixed in 580.178.04 (nvidia-5861): variables/facts/advisories.yml"
    )
