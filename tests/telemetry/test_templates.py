"""The files of `gpu-ami telemetry`: the examples are current, and the linter of CloudFormation is content."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.process import run
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import templates

FOLDER = Path(__file__).parents[2] / "cloudformation"
REGION = "us-east-1"
PLACE = Place(name="aws", region=REGION)


@pytest.mark.parametrize(
    "name", ["telemetry.yml", "instance-alarms.yml", "fleet-alarms.yml", "lab.yml", "dashboard.json"]
)
def test_examples_are_current(name: str) -> None:
    """Made by `gpu-ami telemetry OUT -o cloudformation` of a plan of al2023-any-gpu in us-east-1."""
    plan = make_plan(find_recipe(Path("al2023-any-gpu")), PLACE).document
    assert (FOLDER / name).read_text(encoding="utf-8") == templates.render(plan, REGION)[name]


@pytest.mark.slow
def test_linter_finds_nothing(tmp_path: Path) -> None:
    files = [str(FOLDER / name) for name in ("telemetry.yml", "instance-alarms.yml", "fleet-alarms.yml", "lab.yml")]
    for_neuron = templates.write(make_plan(find_recipe(Path("al2023-neuron")), PLACE).document, REGION, tmp_path)
    files += [str(path) for path in for_neuron if path.suffix == ".yml"]
    code = "from cfnlint.runner import main; main()"
    linted = run([sys.executable, "-c", code, "--regions", REGION, "--", *files], timeout=300, check=False)
    assert (linted.stdout, linted.returncode) == ("", 0)


@pytest.mark.parametrize("recipe", ["al2023-graphics", "ubuntu2404-gb200"])
def test_templates_are_sent_without_a_bucket(recipe: str) -> None:
    texts = templates.render(make_plan(find_recipe(Path(recipe)), PLACE).document, REGION)
    assert max(len(text.encode()) for text in texts.values()) <= templates.INLINE_CHARACTERS
    assert "&id" not in "".join(texts.values())  # an alias of YAML, which CloudFormation does not know


def test_files_are_written(tmp_path: Path) -> None:
    plan = make_plan(find_recipe(Path("debian12-gpu")), PLACE).document
    written = templates.write(plan, "eu-central-1", tmp_path / "new")
    names = ["telemetry.yml", "instance-alarms.yml", "fleet-alarms.yml", "lab.yml", "dashboard.json"]
    assert [path.name for path in written] == names
    assert json.loads(written[-1].read_text())["widgets"][2]["properties"]["region"] == "eu-central-1"
