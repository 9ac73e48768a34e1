"""The written CloudFormation templates, and the lab.

The dashboard's body has the structure that AWS documents, and shows every measurement of the plan.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.process import run
from gpu_ami.recipes import find_recipe, read_site_alarms
from gpu_ami.telemetry import alarms, dashboard, templates
from tests.telemetry.test_stack import NAMED, PLAN, aws, contents, parameter, text

# The files of `gpu-ami telemetry`: the example is current, and the linter of CloudFormation is content.


FOLDER = Path(__file__).parents[2] / "cloudformation"
REGION = "us-east-1"
PLACE = Place(name="aws", region=REGION)


def test_example_is_current() -> None:
    """Made by `gpu-ami telemetry OUT -o DIR` of a plan of al2023-any-gpu in us-east-1."""
    plan = make_plan(find_recipe(Path("al2023-any-gpu")), PLACE).document
    assert (FOLDER / "fleet-alarms.yml").read_text(encoding="utf-8") == templates.render(plan, REGION)[
        "fleet-alarms.yml"
    ]


@pytest.mark.slow
def test_linter_finds_nothing(tmp_path: Path) -> None:
    files = []
    for recipe in ("al2023-any-gpu", "al2023-neuron"):
        plan = make_plan(find_recipe(Path(recipe)), PLACE).document
        written = templates.write(plan, REGION, tmp_path / recipe)
        files += [str(path) for path in written if path.suffix == ".yml"]
    of_site = read_site_alarms(FOLDER.parent / "docs/examples/site/alarms.yml")
    own = templates.write(PLAN, REGION, tmp_path / "site", of_site)
    files += [str(path) for path in own if path.name == "site-alarms.yml"]
    code = "from cfnlint.runner import main; main()"
    linted = run([sys.executable, "-c", code, "--regions", REGION, "--", *files], timeout=300, check=False)
    assert (linted.stdout, linted.returncode) == ("", 0)


@pytest.mark.parametrize("recipe", ["al2023-any-gpu", "al2023-graphics", "ubuntu2404-gb200"])
def test_templates_are_sent_without_a_bucket(recipe: str) -> None:
    texts = templates.render(make_plan(find_recipe(Path(recipe)), PLACE).document, REGION)
    assert max(len(text.encode()) for text in texts.values()) <= templates.INLINE_CHARACTERS
    assert "&id" not in "".join(texts.values())  # an alias of YAML, which CloudFormation does not know


def test_a_lab_of_every_gpu_type_is_sent_without_a_bucket() -> None:
    plan = make_plan(find_recipe(Path("al2023-any-gpu")), PLACE).document
    rows = [{**plan["instance_types"][0], "name": f"p{number}en-gb200.48xlarge"} for number in range(24)]
    wide: Any = {**plan, "instance_types": rows}
    assert len(templates.render(wide, REGION)["lab.yml"].encode()) <= templates.INLINE_CHARACTERS


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


SHAPE = json.loads((Path(__file__).parent / "dashboard_body.json").read_text())
RECIPES = ("al2023-any-gpu", "al2023-graphics", "al2023-compute")


def body(recipe: str, **more: Any) -> dict[str, Any]:
    plan = make_plan(find_recipe(Path(recipe)), Place(name="aws", region="us-east-1")).document
    return dashboard.body(plan, "us-east-1", ["arn:aws:cloudwatch:us-east-1:123456789012:alarm:a"], "t", **more)


@pytest.mark.parametrize("recipe", [*RECIPES, "al2023-neuron"])
def test_structure_is_the_documented_one(recipe: str) -> None:
    jsonschema.Draft202012Validator(SHAPE).validate(body(recipe))


@pytest.mark.parametrize(
    "change",
    [
        {"widgets": [{"type": "graph", "properties": {}}]},
        {"widgets": [{"type": "metric", "x": 20, "y": 0, "width": 25, "height": 6, "properties": {"region": "r"}}]},
        {"widgets": [{"type": "metric", "x": 0, "y": 0, "width": 8, "height": 6, "properties": {"metrics": []}}]},
        {"start": "yesterday", "widgets": []},
        {},
    ],
)
def test_shape_refuses_what_aws_would(change: dict[str, Any]) -> None:
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.Draft202012Validator(SHAPE).validate(change)


@pytest.mark.parametrize("recipe", RECIPES)
def test_every_measurement_is_shown_for_the_fleet_and_for_a_gpu(recipe: str) -> None:
    plan = make_plan(find_recipe(Path(recipe)), Place(name="aws", region="us-east-1")).document
    text = json.dumps(body(recipe))
    for name in plan["telemetry"]["measurements"]:
        by_fleet = rf"SEARCH\('{{CWAgent,InstanceId}} MetricName=..nvidia_smi_{name}.."
        by_gpu = rf"MetricName=..nvidia_smi_{name}.. InstanceId=..{dashboard.ANY_INSTANCE}.. index"
        assert re.search(by_fleet, text) and re.search(by_gpu, text), name


@pytest.mark.parametrize("recipe", ["al2023-any-gpu", "al2023-neuron"])
def test_widgets_do_not_overlap(recipe: str) -> None:
    taken = set()
    for widget in body(recipe)["widgets"]:
        cells = {
            (x, y)
            for x in range(widget["x"], widget["x"] + widget["width"])
            for y in range(widget["y"], widget["y"] + widget["height"])
        }
        assert not cells & taken and widget["x"] + widget["width"] <= 24
        taken |= cells


def test_events_are_shown_by_severity_and_by_what_to_do() -> None:
    text = json.dumps(body("al2023-any-gpu"))
    for severity in ("fatal", "critical", "warning", "app", "info"):
        assert f'Severity=\\\\\\"{severity}' in text or f'Severity=\\"{severity}' in text
    for alarm in alarms.of_kind(alarms.EVENTS):
        assert f'"t-{alarm.metric}"' in text
    for metric in ("Heartbeat", "LagSeconds", "RecordsLost", "DrillEvents", "RowRemapPending"):
        assert metric in text


def test_unused_gpus_are_counted_at_the_price_list() -> None:
    """A g5.12xlarge has 4 GPUs and costs 5.672 USD an hour: 1 % of a GPU is 0.01418."""
    widget = next(one for one in body("al2023-any-gpu")["widgets"] if "dollars" in one["properties"].get("title", ""))
    expressions = [metric[0]["expression"] for metric in widget["properties"]["metrics"]]
    assert any('InstanceType="g5.12xlarge"' in one and one.endswith("* 0.01418") for one in expressions)
    assert len(expressions) == 7


def test_neuron_s_dashboard_has_metrics_events_and_the_parser_and_nothing_of_gpus() -> None:
    text = json.dumps(body("al2023-neuron"))
    for metric in ("neuroncore_utilization", "neuron_device_count", "NeuronEvents", "NeuronError", "Heartbeat"):
        assert metric in text, metric
    assert not re.search("XidEvents|nvidia_smi|RowRemap|GPU|runbook 79", text.replace("GpuAmi", ""))


def test_lab_has_no_view_of_one_instance() -> None:
    assert "variables" not in body("al2023-any-gpu", by_gpu=False)
