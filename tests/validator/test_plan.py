"""The plan as the checks read it. The types of plan.json and the access to a section by its role's name."""

from __future__ import annotations

import json
import typing
from pathlib import Path
from typing import Any, NotRequired, cast

import pytest

from gpu_ami.recipes.components import components
from gpu_ami.recipes.facts.tables import VARIABLES, load_facts
from gpu_ami.recipes.layers import read_recipe
from gpu_ami.recipes.resolver import resolve
from validator.plan import as_plan, load_plan, planned_instance_type
from validator.plan_document import PlanDocument, ResolvedPlan, section

DOCUMENT = {
    "schema": "gpu-ami/plan/1",
    "os": {"id": "debian", "image": {"owner": "debian"}},
    "instance_types": [{"name": "g5.xlarge", "gpu": {"name": "NVIDIA A10G"}}],
}


def test_missing_key_is_unproven(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(json.dumps({"schema": "gpu-ami/plan/1", "os": {"id": "debian"}}))
    plan: Any = load_plan(tmp_path / "plan.json")
    assert plan["os"]["id"] == "debian"
    with pytest.raises(pytest.skip.Exception, match=r"the plan has no os\.family"):
        plan["os"]["family"]
    (tmp_path / "plan.json").write_text("{}")
    with pytest.raises(ValueError, match="expected schema gpu-ami/plan/1, got None"):
        load_plan(tmp_path / "plan.json")


@pytest.mark.parametrize("text", ["[]", '"plan"', '{"schema": "gpu-ami/plan/2"}'])
def test_other_documents_are_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(ValueError, match="expected schema gpu-ami/plan/1, got "):
        load_plan(tmp_path / "plan.json")


def test_missing_key_is_named_with_its_whole_path() -> None:
    plan: Any = as_plan(DOCUMENT)
    assert plan["os"]["image"]["owner"] == "debian"
    with pytest.raises(pytest.skip.Exception, match=r"the plan has no os\.image\.name$"):
        plan["os"]["image"]["name"]


def test_plan_is_a_dict_that_can_be_written() -> None:
    plan: Any = as_plan(DOCUMENT)
    assert "efa" not in plan and "os" in plan
    assert len(plan) == 3 and list(plan) == ["schema", "os", "instance_types"]
    assert plan == DOCUMENT and json.loads(json.dumps(plan)) == DOCUMENT
    assert plan["os"].get("family", "none") == "none"


def test_instance_type_is_found_by_name() -> None:
    plan: Any = as_plan(DOCUMENT)
    assert planned_instance_type(plan, "g5.xlarge")["gpu"]["name"] == "NVIDIA A10G"
    with pytest.raises(pytest.skip.Exception, match=r"the plan does not have instance type p5\.48xlarge"):
        planned_instance_type(plan, "p5.48xlarge")
    with pytest.raises(pytest.skip.Exception, match=r"the plan has no instance_types\[g5\.xlarge\]\.gpu_count"):
        planned_instance_type(plan, "g5.xlarge")["gpu_count"]


def test_log_groups_are_those_of_the_proof(tmp_path: Path) -> None:
    """The checks look where the machine sends; the agent's configuration stays that of the image."""
    agent = {"config": {"logs": {"log_group_name": "/raw"}}}
    telemetry = {"raw_log_group": "/raw", "json_log_group": "/json", "namespace": "CWAgent"}
    neuron = {"log_group": "/neuron", "log": "/var/log/neuron-metrics.jsonl"}
    document = {
        "schema": "gpu-ami/plan/1", "telemetry": telemetry, "cloudwatch_agent": agent, "neuron_monitor": neuron,
    }  # fmt: skip
    (tmp_path / "plan.json").write_text(json.dumps(document))
    plan: Any = load_plan(tmp_path / "plan.json", "-proof/1")
    assert plan["telemetry"] == {
        "raw_log_group": "/raw-proof/1",
        "json_log_group": "/json-proof/1",
        "namespace": "CWAgent",
    }
    assert plan["neuron_monitor"] == neuron | {"log_group": "/neuron-proof/1"}
    assert plan["cloudwatch_agent"] == agent and load_plan(tmp_path / "plan.json")["telemetry"] == telemetry
    (tmp_path / "plan.json").write_text('{"schema": "gpu-ami/plan/1"}')
    assert "telemetry" not in load_plan(tmp_path / "plan.json", "-proof/1")


def test_section_is_that_of_the_role_or_empty() -> None:
    document = cast(ResolvedPlan, {"cuda": {"version": "13.0"}, "hygiene": {}})
    assert section(document, "cuda") == {"version": "13.0"}
    assert section(document, "hygiene") == section(document, "efa") == {}


def test_every_section_has_a_type() -> None:
    hints = typing.get_type_hints(PlanDocument)
    untyped = [name for name, one in components().items() if not typing.is_typeddict(one.section)]
    assert untyped == []
    required = {name: one.section for name, one in components().items() if one.is_in_every_plan}
    assert {name: hints[name] for name in required} == required


@pytest.mark.parametrize("image", ["al2023-compute", "pcluster-3.16-al2023", "al2023-neuron", "ecs-al2023-gpu"])
def test_plan_has_the_keys_of_its_types(image: str) -> None:
    """Every key of a section is declared, and every key that is not NotRequired is there."""
    facts = load_facts()
    document = cast(dict[str, Any], resolve(read_recipe(VARIABLES / "recipes" / f"{image}.yml", facts), facts))
    optional = {name: one for name, one in components().items() if not one.is_in_every_plan and name in document}
    assert optional
    for name, one in optional.items():
        agree(document.pop(name), one.section, name)
    agree(document, ResolvedPlan, "")


def agree(value: dict[str, Any], declared: Any, path: str) -> None:
    hints = typing.get_type_hints(declared, include_extras=True)
    needed = {key for key, hint in hints.items() if declared.__total__ and typing.get_origin(hint) is not NotRequired}
    assert set(value) <= set(hints), path
    assert set(value) >= needed, path
    for key, hint in typing.get_type_hints(declared).items():
        if key in value and typing.is_typeddict(hint):
            agree(value[key], hint, f"{path}.{key}")
