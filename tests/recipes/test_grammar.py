"""The recipe's keys: what is accepted, what is refused, what is needed.

docs/recipes.md: its reference is the grammar's, its examples are recipes.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.recipes.components import components
from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.layers import layered, recipe_keys
from gpu_ami.recipes.reference import descriptions, reference, rows, with_reference
from gpu_ami.recipes.resolver import resolve

KEYS = recipe_keys(load_facts(), components(), ("ec2", "eks"))


@pytest.mark.parametrize(
    "document",
    [
        {"nvidia_driver": {"version": "580", "flavour": "boot", "gsp": False}},
        {"nvidia_driver": {"flavour": "open"}},
        {"cuda": {"version": "newest", "forward_compatibility": True}},
        {"mkl": {"version": "2020.0-088"}},
        {"build": {"instance_type": "c7i.4xlarge", "root_volume_gib": 40}},
        {"node": "eks", "node_version": "1.33", "roles": ["cuda"]},
        {"tuning": {"sysctl": {"net.core.rmem_max": "67108864"}, "mig": {"p4d.24xlarge": "3g.20gb,3g.20gb"}}},
        {"source_ami": {"id": "ami-0123456789abcdef0"}},
    ],
)
def test_keys_that_a_recipe_may_have(document: dict[str, Any]) -> None:
    assert list(KEYS.check(document, "")) == []


@pytest.mark.parametrize(
    ("document", "path"),
    [
        ({"colour": "red"}, "colour"),
        ({"flag": "Debian"}, "flag"),
        ({"os": "debian"}, "os"),
        ({"node": "dlami"}, "node"),
        ({"roles": ["cuda", "cude"]}, "roles[1]"),
        ({"cuda": {"version": 12.4}}, "cuda.version"),
        ({"cuda": {"version": "latest"}}, "cuda.version"),
        ({"nvidia_driver": {"version": "580", "flavour": "closed"}}, "nvidia_driver.flavour"),
        ({"efa": {"version": "1.38.0", "mode": "none"}}, "efa.mode"),
        ({"build": {"instance_type": "g5.13xlarge", "root_volume_gib": 40}}, "build.instance_type"),
        ({"build": {"instance_type": "g5.xlarge", "root_volume_gib": 2}}, "build.root_volume_gib"),
        ({"telemetry": {"interval_s": 0}}, "telemetry.interval_s"),
        ({"telemetry": {"retention_days": 31}}, "telemetry.retention_days"),
        ({"event_parser": {"raw_log": "gpuevent.log"}}, "event_parser.raw_log"),
        ({"tuning": {"mig": {"p4d.24xlarge": "3g"}}}, "tuning.mig.'p4d.24xlarge'"),
        ({"source_ami": {"id": "ami-1"}}, "source_ami.id"),
        ({"lustre": {"key_fingerprint": "0123"}}, "lustre.key_fingerprint"),
    ],
)
def test_mistake_is_reported_at_its_path(document: dict[str, Any], path: str) -> None:
    assert [mistake.path for mistake in KEYS.check(document, "")] == [path]


def test_needed_keys_are_missing_until_they_are_set() -> None:
    top = {"flag", "os", "instance_types", "architecture", "node", "build", "roles", "ansible"}
    assert {gap.path for gap in KEYS.missing({})} >= top
    assert "cuda.version" in {gap.path for gap in KEYS.missing({"cuda": {}})}
    assert "nvidia_driver.version" not in {gap.path for gap in KEYS.missing({"nvidia_driver": {}})}


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
