"""The written CloudFormation templates, and the lab."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.process import run
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import templates
from tests.telemetry.test_stack import NAMED, PLAN, aws, contents, parameter, text

# The files of `gpu-ami telemetry`: the examples are current, and the linter of CloudFormation is content.


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


@pytest.mark.parametrize("recipe", ["al2023-any-gpu", "al2023-graphics", "ubuntu2404-gb200"])
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


# The lab: made in an empty account with two instances, and deleted without a trace.


__all__ = ["aws"]


def test_lab_is_made_and_deleted(aws: Any) -> None:
    before = contents(aws)
    image = aws("ec2").register_image(Name="gpu", RootDeviceName="/dev/xvda")["ImageId"]
    cloudformation = aws("cloudformation")
    given = [parameter("ImageId", image)]
    cloudformation.create_stack(StackName="lab", TemplateBody=text("lab.yml"), Parameters=given, **NAMED)
    made = contents(aws)
    assert [one["InstanceType"] for one in made["instances"]] == ["g4dn.xlarge"] * 2
    assert {one["VpcId"] for one in made["instances"]} == {vpc["VpcId"] for vpc in made["vpcs"]}
    assert len(made["alarms"]) == 8 + 2 * 8
    value = aws("ssm").get_parameter(Name="AmazonCloudWatch-lab")["Parameter"]["Value"]
    assert '"namespace":"CWAgentGPU"' in value
    cloudformation.delete_stack(StackName="lab")
    assert contents(aws) == before


def test_nothing_comes_in_and_metadata_needs_a_token() -> None:
    resources = templates.lab(PLAN)["Resources"]
    assert "SecurityGroupIngress" not in resources["Group"]["Properties"]
    options = resources["LaunchTemplate"]["Properties"]["LaunchTemplateData"]["MetadataOptions"]
    assert options == {"HttpTokens": "required"}


def test_without_g4dn_the_cheapest_type_is_taken() -> None:
    plan = make_plan(find_recipe(Path("al2023-graphics")), Place(name="aws", region="us-east-1")).document
    assert templates.lab(plan)["Parameters"]["InstanceType"]["Default"] == "g6.xlarge"
