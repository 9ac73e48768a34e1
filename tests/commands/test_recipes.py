"""`gpu-ami recipes`: the list, its filter, and a recipe that does not resolve."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from gpu_ami import cli

RECIPES = Path(__file__).parents[2] / "variables" / "recipes"


@pytest.fixture(autouse=True)
def three_recipes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The project's recipes of two images, and a user's recipe that has mistakes."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipes").mkdir()
    (tmp_path / "recipes" / "broken.yml").write_text("os: plan9\n")
    names = ("debian12-gpu.yml", "eks-1.34-al2023-neuron.yml")
    paths = [Path(shutil.copy(RECIPES / name, tmp_path / name)) for name in names]
    monkeypatch.setattr("gpu_ami.recipes.all_recipes", lambda: [*paths, tmp_path / "recipes" / "broken.yml"])


def test_all_words_must_match_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes", "EKS", "neuron"]) == 0
    header, row, _, count = capsys.readouterr().out.splitlines()
    assert header.split()[:4] == ["image", "system", "node", "arch"]
    assert row.startswith("eks-1.34-al2023-neuron  amzn 2023") and "trn1.32xlarge" in row
    assert count == "1 of 3 images"
    assert cli.main(["recipes", "debian", "neuron"]) == 0
    assert capsys.readouterr().out.splitlines()[-1].startswith("0 of 3 images (searched ")


def test_recipe_with_mistakes_is_listed_with_its_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes"]) == 0
    out = capsys.readouterr().out
    (row,) = (line for line in out.splitlines() if line.startswith("broken "))
    assert "does not resolve" in row and "broken.yml" in row
    assert out.splitlines()[-1] == "3 of 3 images"


def test_json_has_versions_and_roles(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["recipes", "debian12", "--json"]) == 0
    (entry,) = json.loads(capsys.readouterr().out)
    assert (entry["image"], entry["architecture"]) == ("debian12-gpu", "x86_64")
    assert (entry["os"], entry["node"]) == ({"id": "debian", "version": "12"}, {"family": "ec2"})
    assert {"nvidia_driver", "cuda"} <= set(entry["versions"]) and "event_parser" in entry["roles"]
    assert "g5.12xlarge" in entry["instance_types"]


def test_image_past_its_end_of_life_is_marked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from gpu_ami import recipes

    resolve = recipes.resolve

    def ended(*arguments: object) -> object:
        plan = resolve(*arguments)  # type: ignore[arg-type]
        plan["os"]["end_of_life"] = "2020-01-01"
        return plan

    monkeypatch.setattr(recipes, "resolve", ended)
    assert cli.main(["recipes", "debian12"]) == 0
    out = capsys.readouterr().out
    assert "debian 12*" in out and "* past its end of life: debian12-gpu" in out


def test_every_image_of_the_project_resolves_and_is_listed(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    images = sorted(RECIPES.glob("*.yml"))
    monkeypatch.setattr("gpu_ami.recipes.all_recipes", lambda: images)
    assert cli.main(["recipes"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[-1] == f"{len(images)} of {len(images)} images"
    (ecs,) = [line for line in lines if line.startswith("ecs-al2023-gpu ")]
    versions, types = ["580.178.04", "-", "-", "-"], ["g5.12xlarge", "g6.12xlarge", "p4d.24xlarge", "p5.48xlarge"]
    assert ecs.split() == ["ecs-al2023-gpu", "amzn", "2023", "ecs", "x86_64", *versions, *types]
    assert not any("past its end of life" in line or "does not resolve" in line for line in lines)
