"""What a component declares: its grammar and its section; a version in the text of a template's variable."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.components import components
from gpu_ami.recipes.facts.tables import Sources
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


@pytest.mark.parametrize(
    "component, text, version",
    [
        ("nvidia_driver", "580", "580"),
        ("nvidia_driver", "580.178.04", "580.178.04"),
        ("nvidia_driver", "580.178.04-1.amzn2023", "580.178.04"),
        ("nvidia_driver", "*", "newest"),
        ("cuda", "12", "12"),
        ("cuda", "12.8", "12.8"),
        ("cudnn", "9", "9"),
        ("nccl", "libnccl2=2.18.5-1+cuda12.2", "2.18.5"),
        ("efa", "1.38.0", "1.38.0"),
        ("ofi_nccl", "v1.14.0-aws", "1.14.0"),
        ("gdrcopy", "v2.5.2", "2.5.2"),
        ("dcgm", "4", "4"),
        ("dcgm", "4.4.2-1", "4.4.2"),
        ("container_toolkit", "latest", "newest"),
        ("dcgm", "the usual", None),
    ],
)
def test_version_of_a_text(component: str, text: str, version: str | None) -> None:
    template = components()[component].template
    assert template
    read = template.read(text)
    assert read.version == version
    assert read.others == ((text,) if version is None else ())
