"""docs/schemas/plan.json: generated from the plan's types, true of real plans, and it refuses what they are not."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from gpu_ami.plan.json_schema import plan_schema, schema_text
from gpu_ami.plan.resolution import make_plan
from tests.plan.conftest import AWS, DEBIAN, LOCAL, RECIPES, ROOT

COMMITTED = ROOT / "docs" / "schemas" / "plan.json"


def test_committed_schema_is_that_of_the_types() -> None:
    """Where this fails on purpose: python -m gpu_ami.plan.json_schema > docs/schemas/plan.json."""
    assert COMMITTED.read_text(encoding="utf-8") == schema_text()


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda path: path.stem)
def test_schema_holds_of_the_plan_of_every_recipe(recipe: Path) -> None:
    validator = jsonschema.Draft202012Validator(json.loads(COMMITTED.read_text()))
    for place in (AWS, LOCAL):
        errors = list(validator.iter_errors(json.loads(json.dumps(make_plan(recipe, place).document))))
        assert [f"{error.json_path}: {error.message}" for error in errors] == []


@pytest.mark.parametrize(
    "path, value, message",
    [
        ("cuda.versoin", "13.0", "'versoin' was unexpected"),
        ("instance_types.0.vcpus", "96", "'96' is not of type 'integer'"),
        ("roles", {}, "is not of type 'array'"),
        ("schema", "gpu-ami/plan/0", "'gpu-ami/plan/1' was expected"),
        ("digest", "sha256:0", "does not match"),
        ("telemetry", {}, "'profile' is a required property"),
    ],
)
def test_schema_refuses_what_is_no_plan(path: str, value: object, message: str) -> None:
    document: Any = copy.deepcopy(dict(make_plan(DEBIAN, AWS).document))
    *parents, key = path.split(".")
    target = document
    for parent in parents:
        target = target[int(parent) if parent.isdigit() else parent]
    target[key] = value
    with pytest.raises(jsonschema.ValidationError, match=message):
        jsonschema.Draft202012Validator(plan_schema()).validate(document)
