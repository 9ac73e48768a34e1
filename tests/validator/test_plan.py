"""The plan as the checks read it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from validator.plan import as_plan, load_plan, planned_instance_type

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
