"""A recipe is found by path or image name: the user's folder first, then what comes with gpu-ami."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.recipes import lookup


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder, entered."""
    monkeypatch.chdir(tmp_path)
    return tmp_path


def recipe(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("flag: x\n")
    return path


def test_image_that_comes_with_gpu_ami(folder: Path) -> None:
    found = lookup.find_recipe(Path("ubuntu2204-compute"))
    assert found.is_absolute() and found.name == "ubuntu2204-compute.yml" and found.is_file()
    assert lookup.find_recipe(Path("eks-1.33-al2023-gpu")).name == "eks-1.33-al2023-gpu.yml"  # no suffix: a version


@pytest.mark.parametrize("place", ["recipes", "site/recipes"])
def test_users_recipe_comes_first(folder: Path, place: str) -> None:
    own = recipe(folder / place / "debian12-gpu.yml")
    assert lookup.find_recipe(Path("debian12-gpu")).resolve() == own
    listed = {path.stem: path.resolve() for path in lookup.all_recipes()}
    assert listed["debian12-gpu"] == own and "ubuntu2204-compute" in listed


def test_path_is_returned_as_it_is(folder: Path) -> None:
    for path in ("there.yml", "./not-there.yml", "variables/recipes/debian12-gpu"):
        assert lookup.find_recipe(Path(path)) == Path(path)
    assert lookup.find_recipe(recipe(folder / "plain")) == folder / "plain"


def test_unknown_image_names_the_nearest_and_the_folders_searched(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        lookup.find_recipe(Path("debian12-gpus"))
    assert "did you mean debian12-gpu?" in str(caught.value)
    assert "searched recipes, site/recipes, /" in str(caught.value)


def test_no_recipes_at_all_says_where_it_looked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lookup, "recipe_folders", lambda: (folder / "nothing",))
    with pytest.raises(UsageError, match=r"no recipes found; searched .*/nothing"):
        lookup.all_recipes()


def test_new_recipes_go_to_the_users_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert lookup.new_recipe_folder() == Path("recipes")
    own = folder / "variables" / "recipes"
    assert lookup.new_recipe_folder(own) == own
