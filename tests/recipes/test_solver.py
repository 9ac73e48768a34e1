"""The choice of versions, and what is said where there is none."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.components import chosen
from gpu_ami.recipes.rules.resolve_context import Conflict
from gpu_ami.recipes.solver import solve
from tests.recipes.conftest import context


def recipe(**versions: str) -> str:
    return "\n".join(f"{name}: {{version: '{version}'}}" for name, version in versions.items())


def conflicts(**versions: str) -> list[Conflict]:
    return solve(context(recipe(**versions))).conflicts


def test_newest_release_of_each_branch_is_chosen() -> None:
    solution = solve(context(recipe(nvidia_driver="580", cuda="12")))
    assert solution.conflicts == []
    assert solution.versions == {"nvidia_driver": "580.178.04", "cuda": "12.9"}


def test_newest_cuda_is_one_that_the_driver_was_made_for() -> None:
    """Driver 570.211.01 would run CUDA 12.9 by minor-version compatibility."""
    assert solve(context(recipe(nvidia_driver="570.211.01", cuda="12"))).versions["cuda"] == "12.8"


def test_older_release_is_chosen_where_the_newest_conflicts() -> None:
    volta = context("nvidia_driver: {version: newest, flavour: proprietary}", types="p3.2xlarge")
    solution = solve(volta)
    assert solution.conflicts == []
    assert solution.versions["nvidia_driver"].startswith("580.")


def test_newest_nccl_is_one_that_was_packaged_for_the_cuda() -> None:
    versions = solve(context(recipe(nvidia_driver="580", cuda="12.8", nccl="newest"))).versions
    packaged = context().facts.nccl["releases"][versions["nccl"]]["packaged"]
    assert any(one.startswith("12.") for one in packaged)


@pytest.mark.parametrize(
    ("component", "version"),
    [("nvidia_driver", "595.91.07"), ("cuda", "13.2"), ("cudnn", "9.25.1"), ("nccl", "2.32.3"), ("dcgm", "4.7.0")],
)
def test_newest_is_one_that_was_seen_for_the_system(component: str, version: str) -> None:
    """The facts have newer drivers, CUDA and cuDNN, which nobody saw in the repository for Amazon Linux 2023."""
    asked = {"nvidia_driver": "newest", "cuda": "newest"} | {component: "newest"}
    solution = solve(context(recipe(**asked), os="al2023"))
    assert solution.conflicts == []
    assert solution.versions[component] == version


def test_newest_is_no_release_of_an_unverified_source_where_there_is_another() -> None:
    assert solve(context(recipe(nvidia_driver="610", cuda="newest"), os="ubuntu2404")).versions["cuda"] == "13.2"


def test_version_that_is_unknown_is_named_with_its_neighbours() -> None:
    (conflict,) = conflicts(nvidia_driver="580", cuda="12.7")
    assert (conflict.path, conflict.source) == ("cuda.version", "variables/facts/cuda.yml")
    assert conflict.text.startswith("no CUDA 12.7 in the facts; nearest below 12.6, above 12.8; newest ")


def test_conflict_names_the_nearest_versions_that_end_it() -> None:
    (conflict,) = conflicts(nvidia_driver="570.211.01", cuda="13.0")
    assert conflict.path == "cuda.version"
    assert conflict.nearest == "driver 580.178.04 or CUDA 12.8"


@pytest.mark.parametrize("change", ["driver 580.178.04", "CUDA 12.8"])
def test_nearest_version_does_end_the_conflict(change: str) -> None:
    label, version = change.split()
    asked = {"nvidia_driver": "570.211.01", "cuda": "13.0"} | {
        {"driver": "nvidia_driver", "CUDA": "cuda"}[label]: version
    }
    assert conflicts(**asked) == []


def test_all_conflicts_are_said_at_once() -> None:
    found = conflicts(nvidia_driver="550.163.01", cuda="13.0", fabric_manager="550.144.03")
    assert {conflict.path for conflict in found} == {"cuda.version", "nvidia_driver.version", "fabric_manager.version"}


def test_version_of_the_base_ami_is_kept() -> None:
    base = context("node_version: 3.16.3", node="parallelcluster", types="p5.48xlarge")
    versions = solve(base).versions
    assert versions == {name: version for name, version in base.provided.items() if name in chosen()}


def test_rules_are_of_known_components() -> None:
    assert {name for names, _ in context().rules for name in names} <= set(chosen())
