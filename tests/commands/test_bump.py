"""`gpu-ami bump`: writes recipe and lock, or nothing with --dry-run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli
from gpu_ami.plan import render_lock, write_lock
from tests.plan.test_bump import RECIPE


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    file = tmp_path / "recipes" / "test.yml"
    file.parent.mkdir()
    file.write_text(RECIPE)
    write_lock(render_lock(file, tmp_path / "locks"), tmp_path / "locks")
    return file


def call(capsys: pytest.CaptureFixture[str], *words: str) -> Any:
    assert cli.main(["bump", *words, "--json", "-q"]) == 0
    data = json.loads(capsys.readouterr().out)
    return data


def test_dry_run_writes_nothing_but_the_summary(
    recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = (tmp_path / "locks" / "test.json").read_text()
    summary = tmp_path / "pr.md"
    (data,) = call(capsys, str(recipe), "--policy", "patch", "--dry-run", "--summary", str(summary))
    assert data["written"] is False and data["moves"][0]["before"] == "580.95.05"
    assert recipe.read_text() == RECIPE and (tmp_path / "locks" / "test.json").read_text() == lock
    assert summary.read_text().startswith("## test\nPolicy `patch`.")


def test_recipe_and_lock_are_written(recipe: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (data,) = call(capsys, str(recipe), "--policy", "patch")
    driver = data["moves"][0]["after"]
    assert data["written"] and f"nvidia_driver: {{version: {driver}}}" in recipe.read_text()
    assert json.loads((tmp_path / "locks" / "test.json").read_text())["plan"]["nvidia_driver"]["version"] == driver
    (again,) = call(capsys, str(recipe), "--policy", "patch")
    assert not again["written"]
