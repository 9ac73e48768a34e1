"""`gpu-ami plan`: its options and messages."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.cli import main
from gpu_ami.plan.lock import changes
from gpu_ami.recipes.facts.tables import VARIABLES
from tests.plan.conftest import AL2023, RECIPES
from tests.plan.conftest import locks as locks
from tests.plan.test_lock import relock


def test_command_checks_all_locks(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--check"]) == 0
    assert f"{len(RECIPES)} of {len(RECIPES)} locks are current" in capsys.readouterr().out


def test_command_fails_on_a_stale_lock(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, locks: Path
) -> None:
    relock(locks, flag="other")
    monkeypatch.setattr("gpu_ami.plan.changes", lambda recipe, *_: changes(recipe, locks))
    assert main(["plan", "--check", str(AL2023)]) == 2
    said = capsys.readouterr().err
    assert "1 of 1 locks are stale: al2023-compute" in said
    assert "flag: other → al2023-compute" in said
    assert main(["plan", "--diff", str(AL2023)]) == 0
    assert "flag: other → al2023-compute" in capsys.readouterr().out


@pytest.mark.parametrize(
    "arguments, message",
    [
        (["--set", "flag=x", "--check"], "--set cannot be used with --check"),
        (["--set", "flag=x", "--lock"], "--set cannot be used with --lock"),
        (["--where", "aws.yml", "--diff"], "--where cannot be used with --diff"),
        (["--out", "x", "--explain"], "--out cannot be used with --explain"),
        (["debian12-gpu", "ubuntu2204-compute", "--diff"], "expected at most two RECIPEs, got 3"),
    ],
)
def test_option_without_meaning_is_refused(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["plan", "al2023-compute", *arguments]) == 2
    assert message in capsys.readouterr().err


def test_diff_compares_the_plan_with_its_overrides(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--diff", "al2023-compute", "--set", "build.root_volume_gib=77"]) == 0
    assert "build.root_volume_gib: 60 → 77  (--set)" in capsys.readouterr().out


def test_diff_of_two_images_compares_their_plans(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "--diff", "al2023-compute", "debian12-gpu"]) == 0
    said = capsys.readouterr().out
    assert "al2023-compute → debian12-gpu:" in said and "os.id: amzn → debian" in said
    assert main(["plan", "--diff", "al2023-compute", "al2023-compute"]) == 0
    assert capsys.readouterr().out.strip() == "no difference"


def test_explain_of_a_conflict_exits_2(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "debian12-gpu", "--explain"]) == 0
    assert "CONFLICT" not in capsys.readouterr().out
    assert (
        main(["plan", "debian12-gpu", "--explain", "--set", "cuda.version=13.3", "--set", "nvidia_driver.version=550"])
        == 2
    )
    assert "CONFLICT: driver 550.163.01 cannot run CUDA 13.3" in capsys.readouterr().out


def test_plan_that_the_local_region_cannot_build_says_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    recipe = tmp_path / "old.yml"
    recipe.write_text("flag: old\nos: ubuntu2004\ninstance_types: [g5.xlarge]\nnvidia_driver: {version: '570'}\n")
    assert main(["plan", str(recipe), "-o", str(tmp_path)]) == 0
    said = capsys.readouterr().out
    assert "the local region has no base image for ubuntu 20.04 on x86_64: build it on AWS with --where FILE" in said
    assert main(["plan", "debian12-gpu", "-o", str(tmp_path)]) == 0
    assert "no base image" not in capsys.readouterr().out


def test_cost_is_shown_of_a_plan_for_aws_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str], home: Path) -> None:
    for place, is_shown in ((["--where", str(where(tmp_path))], True), ([], False)):
        assert main(["plan", "-q", "debian12-gpu", "-o", str(tmp_path / "out"), *place]) == 0
        assert ("expected cost: " in capsys.readouterr().out) == is_shown


def test_command_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-q", "--explain", str(VARIABLES / "recipes" / "debian12-gpu.yml")]) == 0
    assert "nvidia_driver.version" in capsys.readouterr().out


def test_command_ends_with_2_and_all_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown key, wrong type, unknown instance type, missing key: one message, each with its path."""
    recipe = tmp_path / "image.yml"
    recipe.write_text(
        "os: debian12\ninstance_types: [g5.13xlarge]\ncolour: red\ncuda: {version: 12.4}\n", encoding="utf-8"
    )
    assert main(["plan", "-q", str(recipe), "-o", str(tmp_path / "out"), "--where", str(where(tmp_path))]) == 2
    said = capsys.readouterr().err
    for part in (
        "4 mistakes",
        "instance_types[0]: no instance type",
        "colour: unknown key",
        "cuda.version: ",
        "flag: missing",
    ):
        assert part in said
    assert not (tmp_path / "out").exists()


def test_command_writes_the_plan(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    recipe = str(VARIABLES / "recipes" / "debian12-gpu.yml")
    assert main(["plan", "-q", recipe, "-o", str(tmp_path / "out"), "--where", str(where(tmp_path))]) == 0
    assert "plan.json  sha256:" in capsys.readouterr().out
    assert (tmp_path / "out" / "packer.pkrvars.json").exists()


def where(folder: Path) -> Path:
    path = folder / "aws.yml"
    path.write_text("region: eu-central-1\n")
    return path
