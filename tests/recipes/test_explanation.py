"""Where each value comes from, what its constraint is pinned to, and which values conflict."""

from __future__ import annotations

from gpu_ami.recipes.explanation import explain
from gpu_ami.recipes.facts import VARIABLES, load_facts
from gpu_ami.recipes.layers import read_recipe


def rows(image: str, *overrides: str) -> dict[str, tuple[str, str]]:
    facts = load_facts()
    recipe = read_recipe(VARIABLES / "recipes" / f"{image}.yml", facts, overrides)
    return {path: (value, origin) for path, value, origin in explain(recipe, facts)}


def test_every_layer_is_named() -> None:
    explained = rows("al2023-compute", "telemetry.interval_s=30")
    assert explained["telemetry.interval_s"] == ("30", "--set")
    assert explained["flag"] == ("al2023-compute", "al2023-compute.yml")
    assert explained["build.root_volume_gib"] == ("60", "os/al2023.yml")
    assert explained["telemetry.namespace"] == ("CWAgent", "defaults.yml")


def test_constraint_is_shown_with_what_it_is_pinned_to() -> None:
    value, origin = rows("al2023-compute")["nvidia_driver.version"]
    assert value.startswith("580 (pinned: 580.") and origin == "al2023-compute.yml"


def test_component_of_the_base_ami_is_named_with_it() -> None:
    assert rows("dlami-ubuntu2204")["nvidia_driver.version"][1] == "base AMI of dlami 20261006"


def test_conflict_stands_where_it_is() -> None:
    value, origin = rows("al2023-compute", "nvidia_driver.flavour=proprietary", "kernel.version=9.9")["kernel.version"]
    assert value.startswith("CONFLICT: ") and "9.9" in value and origin == "--set"


def test_every_conflict_has_a_row() -> None:
    facts = load_facts()
    recipe = read_recipe(VARIABLES / "recipes" / "al2023-compute.yml", facts, ["nvidia_driver.version=550.163.01"])
    conflicts = [value for _, value, _ in explain(recipe, facts) if value.startswith("CONFLICT")]
    assert len(conflicts) == 2
    assert conflicts[0].startswith("CONFLICT: driver 550.163.01 cannot run CUDA 13.0")


def test_version_of_the_base_ami_is_shown() -> None:
    provided = ("595.112.07", "base AMI of parallelcluster 3.16.3")
    assert rows("pcluster-3.16-al2023")["nvidia_driver.version"] == provided
