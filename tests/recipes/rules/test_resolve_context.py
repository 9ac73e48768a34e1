"""A recipe's surroundings: kernel, accelerators, GPUs, and what the base AMI provides."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.components import chosen
from tests.recipes.conftest import context


def test_every_component_has_a_label() -> None:
    assert all(context().label(name) != name for name in chosen() if name != "cuda") and context().label("x") == "x"


@pytest.mark.parametrize(
    ("node", "recipe", "kernel", "base_kernel"),
    [
        ("ec2", "", "6.1", None),
        ("ec2", "kernel: {version: '6.12'}", "6.12", None),
        ("ecs", "", "6.1", "6.1"),
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


def test_section_is_what_the_recipe_says_of_a_component() -> None:
    resolved = context("efa: {version: 1.47.0, mode: minimal}")
    assert resolved.section("efa") == {"version": "1.47.0", "mode": "minimal"}
    assert resolved.section("nccl") == {}


def test_flavour_is_that_of_the_layers() -> None:
    assert context().flavour == "open"
    assert context(os="al2").flavour == "proprietary"
