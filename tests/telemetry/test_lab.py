"""The lab: made in an empty account with two instances, and deleted without a trace."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import lab
from tests.telemetry.test_stack import NAMED, PLAN, aws, contents, parameter, text

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
    assert len(made["alarms"]) == 8 + 2 * 7
    value = aws("ssm").get_parameter(Name="AmazonCloudWatch-lab")["Parameter"]["Value"]
    assert '"namespace":"CWAgentGPU"' in value
    cloudformation.delete_stack(StackName="lab")
    assert contents(aws) == before


def test_nothing_comes_in_and_metadata_needs_a_token() -> None:
    resources = lab.lab(PLAN)["Resources"]
    assert "SecurityGroupIngress" not in resources["Group"]["Properties"]
    options = resources["LaunchTemplate"]["Properties"]["LaunchTemplateData"]["MetadataOptions"]
    assert options == {"HttpTokens": "required"}


def test_without_g4dn_the_cheapest_type_is_taken() -> None:
    plan = make_plan(find_recipe(Path("al2023-graphics")), Place(name="aws", region="us-east-1")).document
    assert lab.lab(plan)["Parameters"]["InstanceType"]["Default"] == "g6.xlarge"
