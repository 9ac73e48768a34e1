"""The dashboard's body has the structure that AWS documents, and shows every measurement of the plan."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_ami.cloud import Place
from gpu_ami.plan import make_plan
from gpu_ami.recipes import find_recipe
from gpu_ami.telemetry import alarms, dashboard

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
