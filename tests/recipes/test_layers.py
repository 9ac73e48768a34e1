"""A recipe is found; its layers, the command line above them, and the origin of every value."""

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.recipes import layers
from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.layers import read_recipe

ROOT = Path(__file__).resolve().parents[2]
FACTS = load_facts()


def write(folder: Path, text: str) -> Path:
    recipe = folder / "image.yml"
    recipe.write_text(text, encoding="utf-8")
    return recipe


def test_each_layer_is_above_the_one_before(tmp_path: Path) -> None:
    """defaults < architecture < operating system < node family < image < command line, each seen on one key."""
    text = "flag: x\nos: al2023\nnode: eks\nnode_version: '1.33'\ninstance_types: [g5.12xlarge]\n"
    recipe = write(tmp_path, f"{text}telemetry: {{interval_s: 30}}\n")
    values = read_recipe(recipe, FACTS).values
    assert values["build"]["root_volume_gib"] == 40  # eks above al2023's 60
    assert values["build"]["instance_type"] == "m6i.2xlarge"  # x86_64
    arm64 = read_recipe(recipe, FACTS, ["architecture=arm64"]).values
    assert arm64["build"]["instance_type"] == "m6g.2xlarge"
    assert values["telemetry"]["interval_s"] == 30  # image above the defaults' 60
    assert read_recipe(recipe, FACTS, ["telemetry.interval_s=20"]).values["telemetry"]["interval_s"] == 20


def test_origins_name_the_layer(tmp_path: Path) -> None:
    recipe = read_recipe(
        write(tmp_path, "flag: x\nos: al2023\ninstance_types: [g5.12xlarge]\n"), FACTS, ["cuda.version=12"]
    )
    assert recipe.origin("architecture") == "defaults.yml"
    assert recipe.origin("build.root_volume_gib") == "os/al2023.yml"
    assert recipe.origin("roles") == "components"
    assert recipe.origin("instance_types[0]") == "image.yml"
    assert recipe.origin("cuda.version") == "--set"


def test_command_line_chooses_the_layers_too(tmp_path: Path) -> None:
    recipe = write(tmp_path, "flag: x\nos: al2023\ninstance_types: [g5.12xlarge]\n")
    assert read_recipe(recipe, FACTS, ["os=al2"]).values["nvidia_driver"]["flavour"] == "proprietary"


def test_reading_leaves_the_layers_as_they_are(tmp_path: Path) -> None:
    recipe = write(tmp_path, "flag: x\nos: al2023\ninstance_types: [g5.12xlarge]\n")
    read_recipe(recipe, FACTS, ["telemetry.interval_s=5", "build.root_volume_gib=99"])
    assert read_recipe(recipe, FACTS).values["telemetry"]["interval_s"] == 60
    assert read_recipe(recipe, FACTS).values["build"]["root_volume_gib"] == 60


@pytest.mark.parametrize(
    "override, path, expected",
    [
        ("nvidia_driver.version=580", ("nvidia_driver", "version"), "580"),
        ("cuda.version=12.10", ("cuda", "version"), "12.10"),
        ("telemetry.interval_s=10", ("telemetry", "interval_s"), 10),
        ("cuda.forward_compatibility=true", ("cuda", "forward_compatibility"), True),
        ("instance_types=[p4d.24xlarge]", ("instance_types",), ["p4d.24xlarge"]),
    ],
)
def test_command_line_values_have_the_keys_type(
    override: str, path: tuple[str, ...], expected: object, tmp_path: Path
) -> None:
    recipe = write(tmp_path, "flag: x\nos: al2023\ninstance_types: [g5.12xlarge]\ncuda: {version: '12.9'}\n")
    value = read_recipe(recipe, FACTS, [override]).values
    for key in path:
        value = value[key]
    assert value == expected
    assert type(value) is type(expected)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("!!bool maybe", "got '!!bool maybe'"),
        ('!!int ""', "got '!!int \"\"'"),
        ("2026-13-41", "got '2026-13-41'"),
        ("010", "got 010"),
    ],
)
def test_what_yaml_cannot_read_on_the_command_line_is_text(tmp_path: Path, text: str, found: str) -> None:
    recipe = write(tmp_path, "flag: x\nos: al2023\ninstance_types: [g5.12xlarge]\n")
    with pytest.raises(UsageError) as refused:
        read_recipe(recipe, FACTS, [f"boot_seconds={text}"])
    assert refused.value.details == (f"--set: boot_seconds: expected a whole number from 10 to 3600 seconds, {found}",)


@pytest.mark.parametrize("name", ["a\nb.yml", "a\x1b[31m.yml", f"{'a' * 129}.yml", "..yml"])
def test_a_file_whose_name_is_no_name_of_an_image_is_refused(tmp_path: Path, name: str) -> None:
    recipe = tmp_path / name
    recipe.write_text("flag: x\nos: al2023\ninstance_types: [g5.12xlarge]\n")
    with pytest.raises(UsageError) as refused:
        read_recipe(recipe, FACTS)
    assert "the file's name is the image's: expected at most 128 characters" in refused.value.details[0]


def test_a_name_may_have_spaces_and_umlauts(tmp_path: Path) -> None:
    recipe = tmp_path / "Zürich Süd.yml"
    recipe.write_text("flag: x\nos: al2023\ninstance_types: [g5.12xlarge]\n")
    assert read_recipe(recipe, FACTS).name == "Zürich Süd"


def test_missing_recipe_names_its_neighbour() -> None:
    with pytest.raises(UsageError, match="no such file") as caught:
        read_recipe(ROOT / "variables" / "recipes" / "debian12-gp.yml", FACTS)
    assert "debian12-gpu.yml" in caught.value.hint


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
    found = layers.find_recipe(Path("ubuntu2204-compute"))
    assert found.is_absolute() and found.name == "ubuntu2204-compute.yml" and found.is_file()
    assert layers.find_recipe(Path("eks-1.33-al2023-gpu")).name == "eks-1.33-al2023-gpu.yml"  # no suffix: a version


@pytest.mark.parametrize("place", ["recipes", "site/recipes"])
def test_users_recipe_comes_first(folder: Path, place: str) -> None:
    own = recipe(folder / place / "debian12-gpu.yml")
    assert layers.find_recipe(Path("debian12-gpu")).resolve() == own
    listed = {path.stem: path.resolve() for path in layers.all_recipes()}
    assert listed["debian12-gpu"] == own and "ubuntu2204-compute" in listed


def test_path_is_returned_as_it_is(folder: Path) -> None:
    for path in ("there.yml", "./not-there.yml", "variables/recipes/debian12-gpu"):
        assert layers.find_recipe(Path(path)) == Path(path)
    assert layers.find_recipe(recipe(folder / "plain")) == folder / "plain"


def test_unknown_image_names_the_nearest_and_the_folders_searched(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        layers.find_recipe(Path("debian12-gpus"))
    assert "did you mean debian12-gpu?" in str(caught.value)
    assert "searched recipes, site/recipes, /" in str(caught.value)


def test_no_recipes_at_all_says_where_it_looked(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layers, "recipe_folders", lambda: (folder / "nothing",))
    with pytest.raises(UsageError, match=r"no recipes found; searched .*/nothing"):
        layers.all_recipes()


def test_new_recipes_go_to_the_users_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert layers.new_recipe_folder() == Path("recipes")
    own = folder / "variables" / "recipes"
    assert layers.new_recipe_folder(own) == own
