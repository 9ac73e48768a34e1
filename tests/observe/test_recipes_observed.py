"""An image with the packages of a plan, observed without it, has the plan's versions: every recipe, as files."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from gpu_ami import observe
from gpu_ami.observe.observation import same
from gpu_ami.recipes import VARIABLES, all_recipes, load_facts, read_recipe, resolve
from tests.observe import foreign_images as foreign

RECIPES = sorted(path for path in all_recipes() if path.is_relative_to(VARIABLES))


def packages_of(section: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Names and full versions of the packages that a section of a plan names."""
    if isinstance(section.get("package"), str) and section.get("package_version"):
        yield section["package"], str(section["package_version"])
    for name, version in (section.get("packages") or {}).items():
        yield name, str(version)


def image_of(plan: Mapping[str, Any], root: Path) -> Path:
    system = next(name for name, row in foreign.SYSTEMS.items() if row[:2] == (plan["os"]["id"], plan["os"]["version"]))
    kernel = f"{plan['kernel']['version']}.0-1"
    image = foreign.Image(root, system, kernels=(kernel,))
    for section in plan.values():
        if isinstance(section, Mapping):
            for name, version in packages_of(section):
                image.install(name, version=re.sub(r"^\d+:", "", version))
    image.agent("", {}, version=plan["cloudwatch_agent"]["version"])
    return image.done()


@pytest.mark.parametrize("path", RECIPES, ids=[path.stem for path in RECIPES])
def test_observed_versions_are_the_plan_s(path: Path, tmp_path: Path) -> None:
    facts = load_facts()
    plan = cast(Mapping[str, Any], resolve(read_recipe(path, facts), facts))
    named = {name for name, section in plan.items() if isinstance(section, Mapping) and [*packages_of(section)]}
    observed = observe.read_files(image_of(plan, tmp_path / "root"))
    row = observed.system(facts)[1] or {}
    assert (row["id"], row["version"]) == (plan["os"]["id"], plan["os"]["version"])
    assert observed.kernel_series == plan["kernel"]["version"]
    declared = {name for name in named if name in observed.registry and observed.registry[name].observed}
    assert declared or plan["node"]["family"] in ("dlami", "parallelcluster", "eks") or "grid" in path.read_text()
    for name in {*declared, "cloudwatch_agent"}:
        version = str(plan[name].get("version", ""))
        assert name in observed.found, f"{name} {version}: not observed"
        if version and name not in ("neuron", "node_eks", "node_ecs"):
            assert same(observed.found[name].version, version), (name, observed.found[name].version, version)
