"""`gpu-ami bump`: writes recipe and lock, or nothing with --dry-run.

`gpu-ami import` (commands/import_.py): what it writes, says and returns.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami import cli
from gpu_ami.cli import main
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


def template(folder: Path, **variables: str) -> Path:
    path = folder / "al2023-x.json"
    builder = {"type": "amazon-ebs", "instance_type": "g5.12xlarge", "ami_users": ["123456789012"]}
    path.write_text(json.dumps({"variables": {"region": "us-east-1", **variables}, "builders": [builder]}))
    return path


def test_recipe_that_resolves_is_written(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out, where = tmp_path / "x.yml", tmp_path / "aws.yml"
    source = template(tmp_path, nvidia_version="580.178.04")
    assert main(["import", str(source), "-o", str(out), "--where-file", str(where)]) == 0
    said = capsys.readouterr().out
    assert f"{out}: written" in said and f"{where}: written" in said and "It resolves." in said
    assert "builders[0].ami_users" in said and "builders[0].ami_users" in out.read_text()
    assert yaml.safe_load(where.read_text()) == {"region": "us-east-1"}


def test_recipe_that_does_not_resolve_exits_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = template(tmp_path, nvidia_version="515.86.01", cuda_version="cuda-toolkit-12-4")
    assert main(["import", str(source), "-o", str(tmp_path / "x.yml")]) == 2
    said = capsys.readouterr().out
    assert "It does not resolve yet:" in said and "driver 515.86.01 cannot run CUDA 12.4" in said


def test_file_that_is_there_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source, out = template(tmp_path, nvidia_version="580.178.04"), tmp_path / "x.yml"
    out.write_text("mine\n")
    assert main(["import", str(source), "-o", str(out)]) == 2
    assert "--force overwrites it" in capsys.readouterr().err
    assert out.read_text() == "mine\n"
    assert main(["import", str(source), "-o", str(out), "--force"]) == 0
    assert "flag: al2023-x" in out.read_text()
