"""The choice of versions, and what is said where there is none; what is known of a release on a system."""

from __future__ import annotations

from dataclasses import replace

import pytest

from gpu_ami.recipes.components import chosen, components
from gpu_ami.recipes.facts.tables import Facts, Sources, load_facts
from gpu_ami.recipes.rules.resolve_context import Conflict
from gpu_ami.recipes.solver import best_known_first, remark, seen, solve
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
    asked = context(recipe(nvidia_driver="610", cuda="newest"), os="ubuntu2404")
    rows = asked.facts.cuda["releases"]
    cuda = {**asked.facts.cuda, "releases": {**rows, "13.3": {**rows["13.3"], "unverified": True}}}
    doubtful = replace(asked, facts=Facts({**asked.facts.tables, "cuda": cuda}, asked.facts.site))
    assert (solve(asked).versions["cuda"], solve(doubtful).versions["cuda"]) == ("13.3", "13.2")


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


def notes(recipe: str, versions: dict[str, str], **place: str) -> list[str]:
    sources = Sources()
    remark(context(recipe, **place), versions, sources)
    return sources.notes


def test_seen_releases_are_releases_of_the_facts() -> None:
    facts = load_facts()
    for os in facts.operating_systems:
        for component in chosen():
            releases = seen(context(os=os), component)
            assert releases <= set(facts.releases(component)), (os, component)


def test_order_is_kept_where_a_version_or_a_branch_is_asked_for() -> None:
    releases = ["9.28.0", "9.25.1", "9.1.0"]
    asked = context("cudnn: {version: '9'}", os="al2023")
    assert best_known_first(asked, "cudnn", releases, None) == releases


def test_seen_releases_come_first_for_newest() -> None:
    asked = context("cudnn: {version: newest}", os="al2023")
    assert best_known_first(asked, "cudnn", ["9.28.0", "9.25.1", "9.1.0"], None) == ["9.25.1", "9.28.0", "9.1.0"]


def test_nccl_that_is_packaged_for_the_cuda_comes_before_one_that_was_seen() -> None:
    asked = context("nccl: {version: newest}", os="al2023")
    assert best_known_first(asked, "nccl", ["2.32.3", "2.31.2"], "12.9") == ["2.31.2", "2.32.3"]
    assert best_known_first(asked, "nccl", ["2.32.3", "2.31.2"], "13.0") == ["2.32.3", "2.31.2"]


@pytest.mark.parametrize("component", ["nvidia_driver", "cuda", "cudnn", "nccl", "dcgm"])
def test_plan_says_that_it_is_unknown_whether_a_system_has_the_newest(component: str) -> None:
    version = list(load_facts().releases(component))[-1]
    asked = f"{component}: {{version: newest}}"
    (note,) = notes(asked, {component: version}, os="ubuntu2404")
    assert note.startswith(f"{component}.version newest: ") and version in note
    assert note.endswith("not established: that NVIDIA's repository for ubuntu2404 has it")
    assert notes(f"{component}: {{version: '{version}'}}", {component: version}, os="ubuntu2404") == []


def test_nothing_is_said_of_a_release_that_was_seen() -> None:
    assert notes("cudnn: {version: newest}", {"cudnn": "9.25.1"}, os="al2023") == []


@pytest.mark.parametrize(
    ("component", "version", "os"),
    [
        ("nccl", "2.28.9", "debian12"),
        ("cudnn", "8.9.7", "al2"),
        ("dcgm", "3.3.6", "ubuntu2004"),
        ("container_toolkit", "1.20.1", "debian12"),
    ],
)
def test_systems_that_the_vendor_does_not_name_are_noted(component: str, version: str, os: str) -> None:
    (note,) = notes(f"{component}: {{version: {version}}}", {component: version}, os=os)
    assert note.startswith("not established: that ") and f"is packaged for {os}; not in " in note


@pytest.mark.parametrize("component", ["efa", "gdrcopy", "ofi_nccl", "mkl", "neuron"])
def test_components_that_are_the_same_for_all_systems_need_no_note(component: str) -> None:
    version = list(load_facts().releases(component))[-1]
    assert notes(f"{component}: {{version: newest}}", {component: version}, os="ubuntu2204") == []


def test_component_of_the_base_ami_needs_no_note() -> None:
    base = context("node_version: 3.16.3", node="parallelcluster", types="p5.48xlarge")
    sources = Sources()
    remark(base, base.provided, sources)
    assert sources.notes == []


def test_newest_agent_is_the_newest_whose_build_is_known() -> None:
    section = components()["cloudwatch_agent"].written(context("cloudwatch_agent: {version: newest}"), {}, Sources())
    assert section
    assert section["version"] == "1.300072.0"
    assert "/1.300072.0b1766/" in section["url"]
