"""Where recipes are: in the user's folder (the working directory) first, then those that come with gpu-ami."""

from __future__ import annotations

from pathlib import Path

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts import VARIABLES
from validator.schema import did_you_mean

_USER_FOLDERS = (Path("recipes"), Path("site", "recipes"))


def recipe_folders(own: Path = VARIABLES / "recipes") -> tuple[Path, ...]:
    """The folders in which an image's name is looked up, in order; the user's need not exist."""
    return (*_USER_FOLDERS, own)


def new_recipe_folder(own: Path = VARIABLES / "recipes") -> Path:
    """Where a new recipe is written: variables/recipes in a checkout's top-level folder, elsewhere recipes/."""
    return own if Path.cwd() == own.parents[1] else _USER_FOLDERS[0]


def all_recipes() -> list[Path]:
    """Every recipe, ordered by image name; of two with one name, the user's. UsageError: there is none."""
    by_image: dict[str, Path] = {}
    for folder in reversed(recipe_folders()):
        by_image |= {path.stem: path for path in folder.glob("*.yml")}
    if not by_image:
        raise UsageError(
            f"no recipes found; searched {_searched()}", hint="reinstall gpu-ami; gpu-ami init DIR writes a recipe"
        )
    return [by_image[image] for image in sorted(by_image)]


def find_recipe(recipe: Path) -> Path:
    """The file of a recipe that is named by its path or by its image's name (`ubuntu2204-compute`).

    UsageError: an image's name that no folder has. A path is returned as it is: whoever reads the file reports it.
    """
    if recipe.is_file() or len(recipe.parts) != 1 or recipe.suffix in (".yml", ".yaml"):
        return recipe
    for folder in recipe_folders():
        if (file := folder / f"{recipe.name}.yml").is_file():
            return file
    near = did_you_mean(recipe.name, [path.stem for path in all_recipes()])
    raise UsageError(
        f"no image {recipe.name!r}{near}",
        details=[f"searched {_searched()}"],
        hint="gpu-ami recipes lists the images; a recipe file is given by its path",
    )


def _searched() -> str:
    return ", ".join(str(folder) for folder in recipe_folders())
