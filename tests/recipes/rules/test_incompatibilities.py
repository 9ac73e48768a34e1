"""Known incompatibilities: each row has its source and end, is refused at its borders, and can be accepted by name."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.recipes import load_facts
from gpu_ami.recipes.rules import INCOMPATIBILITY_RULES, accepted_notes
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


def test_drivers_older_than_the_repositorys_dkms() -> None:
    assert refusals(nvidia_driver="570.133.20") and not refusals(nvidia_driver="570.148.08")
    assert not refusals(nvidia_driver="570.133.20", system="ubuntu2404")


def test_what_is_accepted_is_noted() -> None:
    of = context("accept: [container-toolkit-daemon-reload, r595-efa-p6e-gb200]")
    first, second = accepted_notes(of, {"container_toolkit": "1.17.8"})
    assert first.startswith("accepted: container-toolkit-daemon-reload: where systemd manages cgroups")
    assert second == "accept names r595-efa-p6e-gb200, which this plan does not have"
