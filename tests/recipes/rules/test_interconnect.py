"""Rules of the network, each with versions on both sides of its bound."""

from __future__ import annotations

import pytest

from gpu_ami.recipes.rules import interconnect as rules
from gpu_ami.recipes.rules.resolve_context import Rule
from tests.recipes.conftest import context

MINIMAL = "efa: {version: 1.47.0, mode: minimal}"


@pytest.mark.parametrize(
    ("rule", "refused", "accepted", "says"),
    [
        (rules.nccl_fits_efa, "nccl=2.19.3 efa=1.25.1", "nccl=2.19.3 efa=1.29.1", "NCCL 2.19.3 with EFA 1.25.1: "),
        (rules.nccl_fits_efa, "nccl=2.20.5 efa=1.25.1", "nccl=2.18.3 efa=1.25.1", "hangs or fails"),
        (rules.efa_regression, "efa=1.35.0 ofi_nccl=1.12.0", "efa=1.35.0 ofi_nccl=1.12.1",
         "EFA 1.35.0 with aws-ofi-nccl 1.12.0: all-reduce bandwidth falls"),
        (rules.efa_regression_without_plugin, "efa=1.35.0", "efa=1.36.0", "EFA 1.35.0 without ofi_nccl.version"),
        (rules.one_plugin, "efa=1.47.0 ofi_nccl=1.17.2", "efa=1.47.0 ofi_nccl=1.18.0",
         "EFA 1.47.0 contains aws-ofi-nccl 1.18.0; a second one, 1.17.2, would shadow it"),
        (rules.plugin_finds_libfabric, "efa=1.32.0 ofi_nccl=1.13.0", "efa=1.34.0 ofi_nccl=1.13.0",
         "aws-ofi-nccl 1.13.0 needs libfabric ≥ 1.22.0; EFA 1.32.0 has 1.21.0"),
        (rules.plugin_serves_nccl, "ofi_nccl=1.14.0 nccl=2.16.5", "ofi_nccl=1.14.0 nccl=2.17.1",
         "aws-ofi-nccl 1.14.0 needs NCCL ≥ 2.17.1, not 2.16.5"),
        (rules.bundled_plugin_serves_nccl, "efa=1.47.0 nccl=2.16.5", "efa=1.47.0 nccl=2.17.1",
         "EFA 1.47.0 contains aws-ofi-nccl 1.18.0, which needs NCCL ≥ 2.17.1"),
        (rules.driver_fits_efa, "efa=1.39.0 nvidia_driver=580.65.06", "efa=1.43.3 nvidia_driver=580.65.06",
         "driver 580.65.06 with EFA 1.39.0: "),
        (rules.driver_fits_efa, "efa=1.39.0 nvidia_driver=590.44.01", "efa=1.39.0 nvidia_driver=570.211.01", "EFA"),
        (rules.installer_supports_system, "efa=1.22.1", "efa=1.25.1",
         "EFA 1.22.1 does not support al2023: 1.25.0 is the first installer that does"),
    ],
)  # fmt: skip
def test_rule_refuses_one_side_of_its_bound(rule: Rule, refused: str, accepted: str, says: str) -> None:
    surroundings = context(types="p5.48xlarge")
    (conflict,) = rule(surroundings, dict(pair.split("=") for pair in refused.split()))
    assert says in conflict.text
    assert conflict.source
    assert list(rule(surroundings, dict(pair.split("=") for pair in accepted.split()))) == []


@pytest.mark.parametrize(
    ("system", "recipe", "efa", "plugin"),
    [
        ("al2023", "", "1.36.0", None),
        ("al2023", "", "1.38.0", "1.13.2"),
        ("al2023", MINIMAL, "1.47.0", None),
        ("debian12", "", "1.47.0", None),
        ("debian12", "", "1.48.0", "1.19.0"),
        ("al2", "", "1.47.0", None),
    ],
)
def test_installer_brings_the_plugin_to_some_systems(system: str, recipe: str, efa: str, plugin: str | None) -> None:
    assert rules.bundled_plugin(context(recipe, os=system), efa) == plugin


def test_minimal_installer_has_no_libfabric_for_a_plugin() -> None:
    (conflict,) = rules.plugin_finds_libfabric(context(MINIMAL), {"efa": "1.47.0", "ofi_nccl": "1.18.0"})
    assert (conflict.path, conflict.change) == ("efa.mode", ())


def test_plugin_needs_an_efa_of_the_recipe_or_of_the_base_ami() -> None:
    chosen = {"ofi_nccl": "1.18.0"}
    (conflict,) = rules.plugin_needs_efa(context(), chosen)
    assert conflict.nearest == "add efa.version, or leave out ofi_nccl"
    assert list(rules.plugin_needs_efa(context("efa: {version: 1.47.0}"), chosen)) == []
    assert list(rules.plugin_needs_efa(context("node_version: 3.16.3", node="parallelcluster"), chosen)) == []


def test_peer_memory_is_of_one_module() -> None:
    chosen = {"efa": "1.50.0", "nvidia_driver": "580.65.06"}
    (conflict,) = rules.peer_memory_is_of_one_module(context("nvidia_driver: {flavour: boot}"), chosen)
    assert (conflict.path, "efa_nv_peermem is built for one of the two" in conflict.text) == (
        "nvidia_driver.flavour",
        True,
    )
    assert conflict.source and conflict.nearest
    assert list(rules.peer_memory_is_of_one_module(context("nvidia_driver: {flavour: open}"), chosen)) == []


def test_driver_does_not_matter_without_efa_interfaces() -> None:
    chosen = {"efa": "1.39.0", "nvidia_driver": "580.65.06"}
    assert list(rules.driver_fits_efa(context(types="g5.xlarge"), chosen)) == []


def test_system_past_its_last_installer_is_refused() -> None:
    (conflict,) = rules.installer_supports_system(context(os="ubuntu2004"), {"efa": "1.43.3"})
    assert conflict.text == "EFA 1.43.3 does not support ubuntu2004: 1.42.0 is the last installer that does"
