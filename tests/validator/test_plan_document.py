"""The types of plan.json and the access to a section by its role's name."""

from __future__ import annotations

import typing
from typing import Any, NotRequired, cast

import pytest

from gpu_ami.recipes.components import components
from gpu_ami.recipes.facts.tables import VARIABLES, load_facts
from gpu_ami.recipes.layers import read_recipe
from gpu_ami.recipes.resolver import resolve
from validator.plan_document import PlanDocument, ResolvedPlan, section


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
