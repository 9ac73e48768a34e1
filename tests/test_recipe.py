"""Layers of a recipe, the command line above them, and the origin of every value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cli import main
from gpu_ami.errors import UsageError
from gpu_ami.recipes.explain import explain
from gpu_ami.recipes.facts import load_facts
from gpu_ami.recipes.layers import read_recipe

ROOT = Path(__file__).resolve().parents[1]
FACTS = load_facts()


def write(folder: Path, text: str) -> Path:
    recipe = folder / "image.yml"
    recipe.write_text(text, encoding="utf-8")
    return recipe


def test_each_layer_is_above_the_one_before(tmp_path: Path) -> None:
    """defaults < operating system < node family < image < command line, each seen on one key."""
    text = "flag: x\nos: al2023\nnode: eks\nnode_version: '1.33'\ninstance_types: [g5.12xlarge]\n"
    recipe = write(tmp_path, f"{text}telemetry: {{interval_s: 30}}\n")
    values = read_recipe(recipe, FACTS).values
    assert values["build"]["root_volume_gib"] == 40  # eks above al2023's 60 above the defaults' 16
    assert values["build"]["instance_type"] == "g5.12xlarge"  # al2023
    assert values["telemetry"]["interval_s"] == 30  # image above the defaults' 60
    assert read_recipe(recipe, FACTS, ["telemetry.interval_s=20"]).values["telemetry"]["interval_s"] == 20


def test_origins_name_the_layer(tmp_path: Path) -> None:
    recipe = read_recipe(
        write(tmp_path, "flag: x\nos: al2023\ninstance_types: [g5.12xlarge]\n"), FACTS, ["cuda.version=12"]
    )
    assert recipe.origin("architecture") == "defaults.yml"
    assert recipe.origin("build.root_volume_gib") == "os/al2023.yml"
    assert recipe.origin("roles") == "defaults.yml"
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


def test_explain_shows_origin_pin_and_conflict() -> None:
    recipe = ROOT / "variables" / "recipes" / "al2023-compute.yml"
    rows = {path: (value, origin) for path, value, origin in explain(read_recipe(recipe, FACTS), FACTS)}
    assert rows["nvidia_driver.version"] == ("580 (pinned: 580.178.04)", "al2023-compute.yml")
    assert rows["telemetry.interval_s"] == ("60", "defaults.yml")
    found = explain(read_recipe(recipe, FACTS, ["nvidia_driver.version=550.163.01"]), FACTS)
    conflicts = [value for _, value, _ in found if value.startswith("CONFLICT")]
    assert len(conflicts) == 2
    assert conflicts[0].startswith("CONFLICT: driver 550.163.01 cannot run CUDA 13.0")


def test_explain_shows_what_the_base_ami_has() -> None:
    recipe = ROOT / "variables" / "recipes" / "pcluster-3.16-al2023.yml"
    rows = explain(read_recipe(recipe, FACTS), FACTS)
    assert ("nvidia_driver.version", "595.112.07", "base AMI of parallelcluster 3.16.3") in rows


def test_missing_recipe_names_its_neighbour() -> None:
    with pytest.raises(UsageError, match="no such file") as caught:
        read_recipe(ROOT / "variables" / "recipes" / "debian12-gp.yml", FACTS)
    assert "debian12-gpu.yml" in caught.value.hint


def test_command_explains(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", "-q", "--explain", str(ROOT / "variables" / "recipes" / "debian12-gpu.yml")]) == 0
    assert "nvidia_driver.version" in capsys.readouterr().out


def test_command_ends_with_2_and_all_mistakes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Unknown key, wrong type, unknown instance type, missing key: one message, each with its path."""
    recipe = write(tmp_path, "os: debian12\ninstance_types: [g5.13xlarge]\ncolour: red\ncuda: {version: 12.4}\n")
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
    recipe = str(ROOT / "variables" / "recipes" / "debian12-gpu.yml")
    assert main(["plan", "-q", recipe, "-o", str(tmp_path / "out"), "--where", str(where(tmp_path))]) == 0
    assert "plan.json  sha256:" in capsys.readouterr().out
    assert (tmp_path / "out" / "packer.pkrvars.json").exists()


def where(folder: Path) -> Path:
    path = folder / "aws.yml"
    path.write_text("region: eu-central-1\n")
    return path


def call(module: str, *words: str) -> Any:
    """A command below the command line's frame."""
    import argparse
    from importlib import import_module

    from gpu_ami.log import Progress

    parser = argparse.ArgumentParser()
    import_module(f"gpu_ami.commands.{module}").register(parser.add_subparsers())
    args = parser.parse_args([module, *words])
    return args.execute(args, Progress("quiet"))


def test_recipes_lists_every_image_with_what_is_in_it() -> None:
    outcome = call("recipes")
    images = [path.stem for path in (ROOT / "variables" / "recipes").glob("*.yml")]
    assert f"{len(images)} of {len(images)} images" in outcome.text
    (line,) = [line for line in outcome.text.splitlines() if line.startswith("ecs-al2023-gpu ")]
    assert line.split() == (
        [
            "ecs-al2023-gpu",
            "amzn",
            "2023",
            "ecs",
            "x86_64",
            "580.178.04",
            "-",
            "-",
            "-",
            "g5.12xlarge",
            "g6.12xlarge",
            "p4d.24xlarge",
            "p5.48xlarge",
        ]
    )
    assert "* past its end of life: al2-base, al2-ecs, ubuntu1804-base, ubuntu2004-base" in outcome.text
    assert {entry["image"] for entry in outcome.data} == set(images)


def test_recipes_finds_by_words() -> None:
    assert [entry["image"] for entry in call("recipes", "eks", "neuron").data] == ["eks-1.34-al2023-neuron"]
    assert "0 of " in call("recipes", "nothing-like-it").text


def test_facts_command_answers_one_question() -> None:
    assert "NVIDIA H100 80GB HBM3" in call("facts", "p5.48xlarge").text
    assert call("facts", "--driver", "580").data["end of support"] == "2028-06"
    with pytest.raises(UsageError, match="ask for one thing"):
        call("facts")
    with pytest.raises(UsageError, match="ask for one thing"):
        call("facts", "p5.48xlarge", "--driver", "580")
