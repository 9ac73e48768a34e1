"""docs/recipes.md: its reference is the grammar's, its examples are recipes."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.layers import layered
from gpu_ami.recipes.reference import descriptions, reference, rows, with_reference
from gpu_ami.recipes.resolver import resolve

PAGE = Path(__file__).resolve().parents[2] / "docs" / "recipes.md"


def test_page_has_the_reference_of_the_grammar() -> None:
    """Where this fails on purpose: python -m gpu_ami.recipes.reference docs/recipes.md."""
    assert with_reference(PAGE.read_text(encoding="utf-8")) == PAGE.read_text(encoding="utf-8")


def test_every_key_has_a_description_and_no_description_lacks_its_key() -> None:
    assert {path for path, *_ in rows(load_facts())} == set(descriptions())
    page = reference()
    assert all(f"| `{path}` |" in page for path in descriptions())


@pytest.mark.parametrize("path, example", [(path, example) for path, *_, example in rows(load_facts())])
def test_example_has_the_type_of_its_key(path: str, example: str) -> None:
    """A recipe with the example in it has no mistake at that key."""
    recipe = {"flag": "x", "os": "al2023", "instance_types": ["g5.12xlarge"]} | yaml.safe_load(example)
    try:
        layered(Path("x.yml"), recipe, "0" * 64, load_facts())
    except Exception as error:  # another key may be missing; this one may not be wrong
        assert not [line for line in getattr(error, "details", [str(error)]) if f"x.yml: {path}" in line], error


def test_page_without_markers_is_refused() -> None:
    with pytest.raises(ValueError, match="expected the markers"):
        with_reference("# Recipes\n")


def test_examples_of_the_page_resolve() -> None:
    whole, source, grid, eks, mig = re.findall(r"```yaml\n(.*?)```", PAGE.read_text(encoding="utf-8"), flags=re.DOTALL)
    recipe = yaml.safe_load(whole)
    plan = resolve(layered(Path("training.yml"), recipe, "0" * 64, load_facts()), load_facts())
    assert plan["telemetry"]["namespace"] == "Training"
    archives = recipe | {"os": "debian12", "instance_types": ["g5.12xlarge"]} | yaml.safe_load(source)
    archives = {key: value for key, value in archives.items() if key not in ("cuda", "nccl")}
    plan = resolve(layered(Path("training.yml"), archives, "0" * 64, load_facts()), load_facts())
    assert plan["nvidia_driver"]["source"] == "distribution"
    workstation = {"flag": "x", "os": "ubuntu2404", "instance_types": ["g6.xlarge"]} | yaml.safe_load(grid)
    plan = resolve(layered(Path("training.yml"), workstation, "0" * 64, load_facts()), load_facts())
    assert plan["nvidia_driver"]["source"] == "grid"
    on_eks = {"flag": "x", "os": "al2023", "instance_types": ["g6.xlarge"]} | yaml.safe_load(eks)
    plan = resolve(layered(Path("training.yml"), on_eks, "0" * 64, load_facts()), load_facts())
    assert plan["nvidia_driver"]["branches"]["lts"]["instance_types"] == ["g6.xlarge"]
    divided = recipe | {"instance_types": ["p4d.24xlarge", "p5.48xlarge"]} | yaml.safe_load(mig)
    plan = resolve(layered(Path("training.yml"), divided, "0" * 64, load_facts()), load_facts())
    assert plan["tuning"]["mig"]["p4d.24xlarge"] == "3g.20gb,3g.20gb"


def test_page_has_the_drivers_of_the_eks_ami() -> None:
    variant = load_facts().node_families["eks"]["variants"]["nvidia"]
    page = PAGE.read_text(encoding="utf-8")
    for name, branch in variant["driver_branches"].items():
        assert f"| `{name}` | {branch['version']} |" in page
    assert f"-nvidia-1.35-{variant['release']}`" in page
