"""What is known of a release on a system: what `newest` takes, and what the plan says where it is not known."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.components import chosen, cloudwatch_agent
from gpu_ami.recipes.facts.tables import Sources, load_facts
from gpu_ami.recipes.known_releases import best_known_first, remark, seen
from tests.recipes.conftest import context


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
    section = cloudwatch_agent.COMPONENT.written(context("cloudwatch_agent: {version: newest}"), {}, Sources())
    assert section
    assert section["version"] == "1.300072.0"
    assert "/1.300072.0b1766/" in section["url"]
