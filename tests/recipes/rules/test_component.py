"""What a component declares: its grammar and its section."""

from __future__ import annotations

from gpu_ami.recipes.facts.citations import Sources
from gpu_ami.recipes.rules.component import Component, versioned
from tests.recipes.conftest import FACTS, context


def test_section_is_the_recipe_s_where_nothing_writes_it() -> None:
    asked = context("tuning: {clocks: false}")
    assert Component("tuning").written(asked, {}, Sources()) == {"clocks": False}
    assert Component("tuning").written(context(), {}, Sources()) is None
    assert Component("tuning", write=lambda *_: None).written(asked, {}, Sources()) is None


def test_keys_may_follow_from_the_facts() -> None:
    assert list(Component("x", keys=lambda facts: versioned(facts.read_on)).grammar(FACTS).keys) == ["version"]
    assert list(Component("x").grammar(FACTS).keys) == []
    (mistake,) = versioned("1.2").check({"version": "latest"}, "x")
    assert mistake.path == "x.version" and "expected a version, a branch or newest" in mistake.message
