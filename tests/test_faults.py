"""The faults as data, and how their outcome is judged. The machine half runs in tests/machine/."""

from __future__ import annotations

import ast
import fnmatch
from pathlib import Path

import pytest

import validator
from gpu_ami import faults
from gpu_ami.errors import UsageError
from gpu_ami.faults import Fault

FOLDER = Path(validator.__file__).parent / "faults"
CHECKS = Path(validator.__file__).parent / "checks"
GOOD = {"id": "x", "breaks": "b", "plant": "true", "undo": "true", "caught_by": "boot::test_a"}


def check_names() -> set[str]:
    return {
        f"{path.stem}::{node.name}"
        for path in CHECKS.glob("*.py")
        for node in ast.parse(path.read_text(encoding="utf-8")).body
        if isinstance(node, ast.FunctionDef) and node.name.startswith("test_")
    }


def test_every_fault_names_checks_that_exist() -> None:
    names = check_names()
    for fault in faults.load(FOLDER):
        assert fault.caught_by in names, f"{fault.id}: no check {fault.caught_by}"
        for pattern in fault.also:
            assert fnmatch.filter(names, pattern.partition("[")[0].rstrip("*") + "*"), (
                f"{fault.id}: {pattern} fits no check"
            )


def test_every_role_has_two_faults() -> None:
    roles = [fault.caught_by.partition("::")[0] for fault in faults.load(FOLDER)]
    for role in ("boot", "hygiene", "nvidia_driver", "cloudwatch_agent", "event_parser"):
        assert roles.count(role) >= 2, role


@pytest.mark.parametrize(
    ("red", "outcome"),
    [
        ({"boot::test_a": "m"}, "detected"),
        ({"boot::test_a[raw]": "m"}, "detected"),
        ({"boot::test_a": "m", "logs::test_b": "m"}, "detected"),
        ({"boot::test_a": "m", "metrics::test_c": "m"}, "collateral"),
        ({"metrics::test_c": "m"}, "wrong check"),
        ({"boot::test_ab": "m"}, "wrong check"),
        ({}, "missed"),
    ],
)
def test_outcome(red: dict[str, str], outcome: str) -> None:
    assert faults.judge(Fault(**GOOD, also=("logs::*", "boot::test_a[[]*")), red).outcome == outcome  # type: ignore[arg-type]


def test_mistakes_are_named_all_at_once(tmp_path: Path) -> None:
    (tmp_path / "a.yml").write_text("- {id: x, plantt: 1}\n- {id: y, breaks: b, plant: p, undo: u, caught_by: c}\n")
    (tmp_path / "b.yml").write_text("- {id: y, breaks: b, plant: p, undo: u, caught_by: c}\n")
    with pytest.raises(UsageError) as caught:
        faults.load(tmp_path, ["z"])
    said = "\n".join(caught.value.details)
    for part in (
        "a.yml: x: unknown key plantt",
        "a.yml: x: undo is missing",
        "y: the id is used twice",
        "no fault is called z",
    ):
        assert part in said
