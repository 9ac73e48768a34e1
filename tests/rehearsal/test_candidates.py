"""The recipes of a run: what is to be rehearsed, what is known already, and why."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import Place
from gpu_ami.local.images import source_ami
from gpu_ami.rehearsal import candidates
from gpu_ami.rehearsal.candidates import Candidate

PLACE = Place(name="local", region="us-east-1", simulated=True, sandbox_builder=True)
RECIPES = Path(__file__).parents[2] / "variables" / "recipes"


def find(out: Path, *recipes: Path, boot: bool = False, fresh: bool = False) -> list[Candidate]:
    found = candidates.find(recipes, out, PLACE)
    return [candidates.prepare(candidate, PLACE, boot=boot, fresh=fresh) for candidate in found]


def test_a_recipe_with_a_base_image_is_to_be_rehearsed(tmp_path: Path) -> None:
    (found,) = find(tmp_path, RECIPES / "debian12-gpu.yml")
    assert not found.is_settled and found.plan and found.out == tmp_path / "debian12-gpu"
    assert (found.row.base_image, found.row.architecture, found.row.instance_type) == ("debian12", "x86_64", "")


def test_a_recipe_without_a_base_image_is_a_row_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is never missing: whoever reads the table sees that nobody tried it."""
    monkeypatch.setattr(source_ami, "_SYSTEMS", {})
    (found,) = find(tmp_path, RECIPES / "debian12-gpu.yml")
    assert (found.row.result, found.row.exit_code, found.is_settled) == ("NO BASE IMAGE", 0, True)
    assert "no base image for debian 12 on x86_64" in found.row.reason


def test_a_recipe_with_a_mistake_is_a_row(tmp_path: Path) -> None:
    broken = tmp_path / "broken.yml"
    broken.write_text("os: debian12\ninstance_types: [no.such]\n")
    first, second = find(tmp_path / "out", broken, RECIPES / "debian12-gpu.yml")
    assert (first.row.result, first.row.exit_code, first.is_settled) == ("ERROR", 2, True)
    assert "broken.yml" in first.row.reason
    assert not second.is_settled


def test_the_smallest_machine_is_booted(tmp_path: Path) -> None:
    found = find(tmp_path, RECIPES / "debian12-gpu.yml", RECIPES / "ubuntu2404-graphics.yml", boot=True)
    assert [one.row.instance_type for one in found] == ["g5.12xlarge", "gr6.4xlarge"]


def judged(tmp_path: Path, **changes: Any) -> Candidate:
    (first,) = find(tmp_path, RECIPES / "debian12-gpu.yml")
    first.out.mkdir()
    row = replace(first.row, **{"result": "PASS", "checks": "3 PASS", "seconds": 60.0, **changes})
    row.write(first.out)
    (second,) = find(tmp_path, RECIPES / "debian12-gpu.yml")
    return second


def test_what_was_judged_of_the_same_inputs_is_not_rehearsed_again(tmp_path: Path) -> None:
    found = judged(tmp_path)
    assert found.is_settled and found.row.unchanged
    assert (found.row.result, found.row.seconds) == ("PASS", 60.0)
    assert not find(tmp_path, RECIPES / "debian12-gpu.yml", fresh=True)[0].is_settled
    assert not find(tmp_path, RECIPES / "debian12-gpu.yml", boot=True)[0].is_settled


def test_a_red_result_counts_until_its_inputs_change(tmp_path: Path) -> None:
    found = judged(tmp_path, result="FAIL", exit_code=1)
    assert found.is_settled and (found.row.result, found.row.exit_code) == ("FAIL", 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"result": "NOT BUILT", "exit_code": 3, "checks": ""},
        {"result": "ERROR", "exit_code": 4, "checks": ""},
        {"result": "UNPROVEN", "exit_code": 4},
        {"inputs": "sha256:another"},
    ],
)
def test_what_was_not_judged_is_rehearsed_again(tmp_path: Path, changes: dict[str, Any]) -> None:
    assert not judged(tmp_path, **changes).is_settled


def test_what_is_left_out_says_why(tmp_path: Path) -> None:
    (found,) = find(tmp_path, RECIPES / "debian12-gpu.yml")
    left = found.left_out("not in the sample")
    assert (left.row.result, left.row.exit_code, left.row.reason) == ("LEFT OUT", 0, "not in the sample")
    assert left.is_settled
