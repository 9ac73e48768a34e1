"""What a component declares: its grammar and its section; a version in the text of a template's variable.

A recipe's surroundings: kernel, accelerators, GPUs, and what the base AMI provides.
"""

from __future__ import annotations

import pytest

from gpu_ami.recipes.components import chosen, components
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


def test_every_component_has_a_label() -> None:
    assert all(context().label(name) != name for name in chosen() if name != "cuda") and context().label("x") == "x"


@pytest.mark.parametrize(
    ("node", "recipe", "kernel", "base_kernel"),
    [
        ("ec2", "", "6.1", None),
        ("ec2", "kernel: {version: '6.12'}", "6.12", None),
        ("ecs", "", "6.1", "6.1"),
        ("eks", "node_version: '1.33'", "6.12", "6.12"),
        ("eks", "{os: ubuntu2404, node_version: '1.33'}", "7.0", None),
        ("eks", "{os: ubuntu2404, node_version: '1.33', kernel: {version: '6.8'}}", "6.8", None),
    ],
)
def test_kernel_is_the_recipes_the_base_amis_or_the_systems(
    node: str, recipe: str, kernel: str, base_kernel: str | None
) -> None:
    resolved = context(recipe, node=node)
    assert (resolved.kernel, resolved.base_kernel) == (kernel, base_kernel)


def test_gpus_are_named_once_with_their_types() -> None:
    resolved = context(types="g5.xlarge g5.2xlarge p5.48xlarge")
    assert [gpu.named for gpu in resolved.gpus] == [
        "NVIDIA A10G (g5.xlarge, g5.2xlarge)",
        "NVIDIA H100 80GB HBM3 (p5.48xlarge)",
    ]
    assert resolved.gpus[1].architecture["name"] == "Hopper"
    assert resolved.nvswitch == ("p5.48xlarge",)


def test_refused_types_have_no_accelerator() -> None:
    resolved = context(types="g4ad.xlarge")
    assert (resolved.gpus, resolved.accelerators) == ((), frozenset())
    assert context(types="g5.xlarge trn1.2xlarge").accelerators == {"nvidia", "neuron"}


def test_base_ami_provides_what_its_release_names() -> None:
    resolved = context("node_version: 3.16.3", node="parallelcluster")
    assert resolved.provided == resolved.node["versions"]["3.16.3"]["provides"]
    assert resolved.provided["efa"] == "1.51.0"
    assert context().provided == {} == context().node_release


EKS_NVIDIA = "node_version: '1.35'\nnode_variant: nvidia"


@pytest.mark.parametrize(
    ("types", "version", "branches"),
    [
        ("g5.xlarge g7.2xlarge", "580.178.04", {"lts": {"g5.xlarge": "proprietary"}, "pb": {"g7.2xlarge": "open"}}),
        ("g7.2xlarge", "595.91.07", {"lts": {}, "pb": {"g7.2xlarge": "open"}}),
        ("g3.4xlarge", "580.178.04", {"lts": {}, "pb": {}}),
    ],
)
def test_base_ami_of_several_drivers_has_one_for_each_type(
    types: str, version: str, branches: dict[str, dict[str, str]]
) -> None:
    """`provided` is the oldest that a type takes: what runs with it runs with the others."""
    resolved = context(EKS_NVIDIA, node="eks", types=types)
    assert {branch.name: branch.flavours for branch in resolved.driver_branches} == branches
    assert resolved.provided == {"container_toolkit": "1.19.1", "efa": "1.50.0", "nvidia_driver": version}
    assert resolved.base_ami == "eks 1.35 nvidia v20260923"
    taken = resolved.branch_of("g7.2xlarge")
    assert (taken.version if taken else "") == ("595.91.07" if "g7.2xlarge" in types else "")


def test_node_without_variant_has_no_driver_branches() -> None:
    resolved = context("node_version: '1.35'", node="eks")
    assert (resolved.driver_branches, resolved.branch_of("g5.xlarge"), resolved.variant) == ((), None, {})


def test_section_is_what_the_recipe_says_of_a_component() -> None:
    resolved = context("efa: {version: 1.47.0, mode: minimal}")
    assert resolved.section("efa") == {"version": "1.47.0", "mode": "minimal"}
    assert resolved.section("nccl") == {}


def test_flavour_is_that_of_the_layers() -> None:
    assert context().flavour == "open"
    assert context(os="al2").flavour == "proprietary"
