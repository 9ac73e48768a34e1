"""Security bulletins: which of them a version lacks the fix of."""

from __future__ import annotations

from unittest.mock import Mock

import pytest

from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.rules.incompatibilities import SEVERITIES, open_advisories, runtime_advisories
from gpu_ami.recipes.rules.incompatibilities import advisory_notes as notes
from onhost import observation

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


@pytest.mark.parametrize(
    ("system", "package", "version", "lacks"),
    [
        ("ubuntu2404", "runc", "1.3.0-0ubuntu2~24.04.1", {"CVE-2025-31133": True}),
        ("ubuntu2404", "runc", "1.3.3-0ubuntu1~24.04.2", {}),
        ("debian12", "runc", "1.1.5+ds1-1+deb12u1", {"CVE-2024-21626": False, "CVE-2025-31133": False}),
        ("al2023", "runc", "1.1.11-1.amzn2023.0.1", {"CVE-2025-31133": False}),  # AL2023 put the first into 1.1.11
        ("al2023", "runc", "4:1.3.4-5.amzn2023.0.2", {}),
        (
            "al2023",
            "containerd",
            "2.1.4-1.eks.amzn2023.0.1",
            {"CVE-2024-25621": False, "CVE-2026-53488": False, "CVE-2026-53493": False, "CVE-2026-53495": False},
        ),
        ("al2023", "containerd", "2.2.5-1.amzn2023.0.1", {"CVE-2026-53493": False, "CVE-2026-53495": False}),
        ("al2023", "containerd", "2.2.8-1.amzn2023.0.1", {"CVE-2026-53493": False}),
        ("al2023", "containerd", "2.2.9-1.amzn2023.0.1", {}),
        ("debian12", "containerd", "1.7.33-1", {"CVE-2026-53493": False, "CVE-2026-53495": False}),
        ("debian12", "containerd", "1.7.36-1", {}),
        ("ubuntu2404", "containerd.io", "2.4.1-1~ubuntu.24.04~noble", {}),
        ("ubuntu2404", "docker-ce", "5:29.3.0-1~ubuntu.24.04~noble", {"CVE-2026-34040": False}),
        ("al2023", "docker", "25.0.16-1.amzn2023.0.4", {"CVE-2026-34040": False}),
        ("al2023", "podman", "1.0-1", {}),
    ],
)
def test_a_runtime_below_the_fix_of_its_series_is_named(
    system: str, package: str, version: str, lacks: dict[str, bool]
) -> None:
    found = runtime_advisories(FACTS, system, {package: version})
    assert {row["cve"]: certain for _, _, certain, row in found} == lacks


def test_the_reading_program_asks_for_the_runtimes_of_the_table() -> None:
    names = FACTS.advisories["runtimes"]["names"].values()
    assert sorted(observation.RUNTIMES) == sorted(name for of_project in names for name in of_project)
    rows = FACTS.advisories["runtimes"]["rows"].values()
    assert {row["severity"] for row in rows} <= set(SEVERITIES)
