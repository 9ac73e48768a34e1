"""Rules of NVIDIA's GRID driver, each seen once with and once without a conflict."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpu_ami.recipes.rules import driver as rules
from gpu_ami.recipes.rules.resolve_context import ResolveContext
from tests.recipes.conftest import context

CHOSEN = {"nvidia_driver": "580.65.06"}


def asked(more: str = "", *, os: str = "ubuntu2404", types: str = "g6.xlarge", **values: Any) -> ResolveContext:
    found = context(f"{{nvidia_driver: {{source: grid, version: newest{more}}}}}", os=os, types=types)
    return dataclasses.replace(found, values={**found.values, **values})


def test_no_rule_refuses_a_workstation() -> None:
    for _, rule in rules.GRID_RULES:
        assert list(rule(asked(), CHOSEN)) == []


def test_rules_are_silent_for_the_vendors_repository() -> None:
    vendors = context("{nvidia_driver: {version: newest, flavour: open}}", os="debian12", types="p4d.24xlarge")
    for _, rule in rules.GRID_RULES:
        assert list(rule(vendors, CHOSEN)) == []


@pytest.mark.parametrize(
    ("rule", "found", "path", "text"),
    [
        (
            rules.grid_keys_have_grid,
            context("{nvidia_driver: {version: newest, virtual_applications: true}}", types="g6.xlarge"),
            "nvidia_driver.virtual_applications",
            "nvidia_driver.virtual_applications is of the GRID driver, and the image has another",
        ),
        (
            rules.grid_is_for_the_image,
            asked(os="debian12"),
            "nvidia_driver.source",
            "the role installs the GRID driver on ubuntu2204, ubuntu2404, al2023, not on debian12",
        ),
        (
            rules.grid_is_for_the_image,
            asked(architecture="arm64"),
            "nvidia_driver.source",
            "the GRID driver is for x86_64, the image is arm64",
        ),
        (
            rules.grid_is_licensed_for_types,
            asked(types="p4d.24xlarge g6.xlarge"),
            "nvidia_driver.source",
            "p4d.24xlarge: AWS's GRID licence covers g4dn, g5, g6, gr6, g6e, g6f, gr6f",
        ),
        (
            rules.grid_has_gsp_off,
            asked(types="g6.xlarge g5.xlarge"),
            "nvidia_driver.gsp",
            "the GRID driver on g5.xlarge needs the GSP firmware off",
        ),
        (
            rules.grid_has_flavour,
            asked(", flavour: boot"),
            "nvidia_driver.flavour",
            "the GRID driver's installer installs one kernel module, open or proprietary",
        ),
        (
            rules.grid_has_companions,
            asked(fabric_manager={"version": "580.65.06"}),
            "fabric_manager",
            "fabric_manager with the GRID driver: no instance type that its licence covers needs them",
        ),
    ],
)
def test_rule_refuses(rule: Any, found: ResolveContext, path: str, text: str) -> None:
    (conflict,) = rule(found, CHOSEN)
    assert (conflict.path, conflict.text) == (path, text)
    assert conflict.nearest


def test_fraction_of_a_gpu_needs_a_newer_release() -> None:
    found = asked(types="g6.xlarge g6f.large")
    (conflict,) = rules.grid_release_is_for_types(found, {"nvidia_driver": "570.133.20"})
    assert conflict.text == "g6f.large needs vGPU 18.4 or later, driver 570.133.20 is of vGPU 18.1"
    assert (conflict.path, conflict.change) == ("nvidia_driver.version", ("nvidia_driver",))
    assert found.is_built_for("g6f.large") and list(rules.grid_release_is_for_types(found, CHOSEN)) == []
    vendors = context("{nvidia_driver: {version: newest, flavour: open}}", types="g6.xlarge g6f.large")
    assert not vendors.is_built_for("g6f.large") and vendors.is_built_for("g6.xlarge")


def test_gsp_off_is_enough_on_g5() -> None:
    assert list(rules.grid_has_gsp_off(asked(", gsp: false, flavour: proprietary", types="g5.xlarge"), CHOSEN)) == []


def test_base_ami_keeps_its_driver() -> None:
    recipe = "{node_version: '3.16.3', nvidia_driver: {source: grid, version: newest}}"
    found = context(recipe, os="ubuntu2404", types="g6.xlarge", node="parallelcluster")
    (conflict,) = rules.base_has_no_driver(found, CHOSEN)
    assert conflict.text == "the base AMI of parallelcluster 3.16.3 has its own driver 595.112.07"
