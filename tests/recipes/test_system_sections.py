"""Sections of the kernel, the node family, the Lustre client and the tuning."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.recipes import system_sections as system
from gpu_ami.recipes.facts.citations import Sources
from tests.recipes.conftest import FACTS, context

A100 = "p4d.24xlarge"
FINGERPRINT = "0123456789abcdef0123456789abcdef01234567"


@pytest.mark.parametrize(("series", "package"), [("6.1", "kernel"), ("6.12", "kernel6.12")])
def test_kernel_packages_are_those_of_the_series(series: str, package: str) -> None:
    section = system.kernel_section(FACTS.operating_systems["al2023"], series, "x86_64")
    assert section == {
        "version": series,
        "package": package,
        "headers": f"{package}-devel-{{release}}",
        "hold": [package, f"{package}-devel", f"{package}-headers"],
    }


def test_kernel_packages_of_debian_carry_the_architecture() -> None:
    section = system.kernel_section(FACTS.operating_systems["debian12"], "6.1", "arm64")
    assert "arm64" in section["package"]
    assert "{deb}" not in str(section)


@pytest.mark.parametrize(
    ("node", "recipe", "types", "section"),
    [
        ("ec2", "", "g5.xlarge", {}),
        ("eks", "node_version: '1.33'", "g5.xlarge", {"node_eks": {"version": "1.33"}}),
        ("ecs", "", "g5.xlarge", {"node_ecs": {"version": "", "accelerator": "nvidia"}}),
        ("ecs", "", "trn1.2xlarge", {"node_ecs": {"version": "", "accelerator": "neuron"}}),
    ],
)
def test_node_family_has_its_own_role(node: str, recipe: str, types: str, section: dict[str, Any]) -> None:
    assert system.node_section(context(recipe, node=node, types=types)) == section


def test_lustre_client_is_for_recipes_that_ask_for_it() -> None:
    assert system.lustre_section(context(), Sources()) == {}
    assert system.lustre_section(context("lustre: {}"), Sources()) == {"lustre": {"package": "lustre-client"}}


def test_lustre_repository_is_trusted_by_the_recipes_fingerprint() -> None:
    asked = context(f"lustre: {{key_fingerprint: {FINGERPRINT}}}", os="ubuntu2404")
    repository = system.lustre_section(asked, Sources())["lustre"]["repository"]
    assert (repository["suite"], repository["key_fingerprint"]) == ("noble", FINGERPRINT.upper())


def test_lustre_kernel_that_was_not_verified_is_noted() -> None:
    sources = Sources()
    system.lustre_section(context("{lustre: {}, kernel: {version: '6.18'}}"), sources)
    assert sources.notes == ["not verified: a module of al2023's Lustre client for kernel 6.18"]


def test_tuning_has_the_facts_values_below_the_recipes() -> None:
    recipe = "tuning: {sysctl: {net.core.rmem_max: '1', vm.swappiness: '0'}, mig: {p4d.24xlarge: '7g.40gb'}}"
    sources = Sources()
    section = system.tuning_section(context(recipe, types=A100), sources)["tuning"]
    assert section["sysctl"] == FACTS.tuning["sysctl"]["values"] | {"net.core.rmem_max": "1", "vm.swappiness": "0"}
    assert section["clocks"] == {"NVIDIA A100-SXM4-40GB": [1215, 1410]}
    assert (section["mig"], section["memlock"]) == ({A100: "7g.40gb"}, "unlimited")
    assert "limit of locked memory" in {row["fact"] for row in sources.rows}


def test_parts_of_the_tuning_can_be_switched_off() -> None:
    recipe = "tuning: {clocks: false, network: false, memlock: false}"
    assert system.tuning_section(context(recipe), Sources()) == {"tuning": {"sysctl": {}, "clocks": {}, "mig": {}}}
    assert system.tuning_section(context(), Sources()) == {}


def test_gpu_without_known_clocks_is_noted() -> None:
    sources = Sources()
    section = system.tuning_section(context("tuning: {}", types="p6-b200.48xlarge"), sources)["tuning"]
    assert section["clocks"] == {}
    assert sources.notes == ["not established: the highest application clocks of NVIDIA B200; they are not set"]
