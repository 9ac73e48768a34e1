"""Known incompatibilities: each row has its source and end, is refused at its borders, and can be accepted by name.

What a release of the CloudWatch agent reads of the driver's nvidia-smi.
"""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.recipes import load_facts
from gpu_ami.recipes.rules import INCOMPATIBILITY_RULES, accepted_notes
from gpu_ami.recipes.rules import incompatibilities as rules
from tests.recipes.conftest import context

ROWS = load_facts().incompatibilities["rows"]
GB200 = {"recipe": "architecture: arm64\nbuild: {instance_type: c7g.large}\n", "types": "p6e-gb200.36xlarge"}


def refusals(recipe: str = "", *, types: str = "g5.xlarge", system: str = "al2023", **chosen: str) -> list[str]:
    of = context(recipe, types=types, os=system)
    judged: list[Any] = [
        conflict for names, rule in INCOMPATIBILITY_RULES if set(names) <= set(chosen) for conflict in rule(of, chosen)
    ]
    return [conflict.text for conflict in judged]


@pytest.mark.parametrize("name", ROWS)
def test_row_says_why_where_from_and_what_ends_it(name: str) -> None:
    row = ROWS[name]
    assert row["why"] and row["source"] and row["date"] and row["ends"] and row["change"]


@pytest.mark.parametrize(
    ("chosen", "is_refused"),
    [
        ({"nvidia_driver": "595.45.04", "efa": "1.50.0"}, True),
        ({"nvidia_driver": "590.48.01", "efa": "1.50.0"}, False),
        ({"nvidia_driver": "610.43.02", "efa": "1.51.0"}, True), ({"nvidia_driver": "595.45.04"}, False),
    ],
)  # fmt: skip
def test_gb200_with_efa(chosen: dict[str, str], is_refused: bool) -> None:
    found = refusals(GB200["recipe"], types=GB200["types"], system="ubuntu2404", **chosen)
    assert bool(found) is is_refused
    if found:
        assert "with NVIDIA GB200 (p6e-gb200.36xlarge)" in found[0] and "accept: [r595-efa-p6e-gb200]" in found[0]
    assert not refusals(types="p5.48xlarge", system="ubuntu2404", **chosen)


@pytest.mark.parametrize(("version", "is_refused"), [("1.14.6", True), ("1.17.8", True), ("1.18.1", False)])
def test_toolkit(version: str, is_refused: bool) -> None:
    assert bool(refusals(container_toolkit=version)) is is_refused
    assert not refusals("accept: [container-toolkit-daemon-reload]", container_toolkit=version)


def test_dcgm_on_debian_13() -> None:
    (refused,) = refusals(system="debian13", dcgm="4.6.1")
    assert "no DCGM" in refused and "accept: [dcgm-debian13]" in refused
    assert not refusals(system="debian12", dcgm="4.6.1")


def test_drivers_older_than_the_repositorys_dkms() -> None:
    assert refusals(nvidia_driver="570.133.20") and not refusals(nvidia_driver="570.148.08")
    assert not refusals(nvidia_driver="570.133.20", system="ubuntu2404")


def test_what_is_accepted_is_noted() -> None:
    of = context("accept: [container-toolkit-daemon-reload, r595-efa-p6e-gb200]")
    first, second = accepted_notes(of, {"container_toolkit": "1.17.8"})
    assert first.startswith("accepted: container-toolkit-daemon-reload: where systemd manages cgroups")
    assert second == "accept names r595-efa-p6e-gb200, which this plan does not have"


GRAPHICS = "telemetry: {profile: graphics}"


def of(agent: str, *lines: str) -> rules.ResolveContext:
    return context("\n".join([f"cloudwatch_agent: {{version: {agent}}}", *lines]), types="g6.xlarge")


@pytest.mark.parametrize(
    ("agent", "driver", "needed"),
    [
        ("1.300033.0", "535.309.01", "1.300034.0"),
        ("1.300034.0", "535.309.01", None),
        ("1.300055.2", "550.163.01", None),
        ("1.300055.2", "570.172.08", "1.300056.0"),
        ("1.300055.2b1541", "595.91.07", "1.300056.0"),
        ("1.300056.0b1123", "595.91.07", None),
        ("newest", "595.91.07", None),
    ],
)
def test_power_draw_needs_an_agent_that_reads_it(agent: str, driver: str, needed: str | None) -> None:
    conflicts = list(rules.agent_reads_power_draw(of(agent), {"nvidia_driver": driver}))
    assert [conflict.path for conflict in conflicts] == ["cloudwatch_agent.version"] * bool(needed)
    assert all(f"needs ≥ {needed}" in conflict.text for conflict in conflicts)
    assert list(rules.agent_reads_power_draw(of(agent, GRAPHICS), {"nvidia_driver": driver})) == []


@pytest.mark.parametrize(
    ("agent", "driver", "layout"),
    [
        ("1.300071.0b1720", "570.148.08", None),
        ("1.300071.0b1720", "580.65.06", "v13"),
        ("newest", "595.91.07", "v13"),
        ("1.300033.0", "550.163.01", "v12"),
    ],
)
def test_layout_that_the_agent_does_not_know(agent: str, driver: str, layout: str | None) -> None:
    note = rules.unknown_layout(of(agent), driver)
    assert note == "" if layout is None else f"does not know the layout {layout} of nvidia-smi {driver}" in note
