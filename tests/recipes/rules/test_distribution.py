"""Rules of a driver from the operating system's own archive, each seen once with and once without a conflict."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpu_ami.recipes.facts.tables import Facts
from gpu_ami.recipes.rules import distribution as rules
from gpu_ami.recipes.rules.resolve_context import ResolveContext
from tests.recipes.conftest import context

NEWEST = {"nvidia_driver": "535.309.01"}
FORMER = {"nvidia_driver": "535.261.03"}


def asked(
    flavour: str = "proprietary", *, os: str = "debian12", types: str = "g5.12xlarge", **more: Any
) -> ResolveContext:
    recipe = f"{{nvidia_driver: {{source: distribution, version: newest, flavour: {flavour}}}}}"
    found = context(recipe, os=os, types=types)
    return dataclasses.replace(found, values={**found.values, **more})


def test_driver_is_known_for_the_system_and_its_architecture() -> None:
    assert list(rules.distribution_has_driver(asked(), NEWEST)) == []
    (conflict,) = rules.distribution_has_driver(asked(os="al2023"), NEWEST)
    assert conflict.path == "nvidia_driver.source" and "os debian12" in conflict.nearest
    (conflict,) = rules.distribution_has_driver(asked(architecture="arm64"), NEWEST)
    assert conflict.text == "the facts have no NVIDIA driver in the archive of debian12 for arm64"


def test_rules_are_silent_for_the_vendors_repository() -> None:
    vendors = context("{nvidia_driver: {version: newest, flavour: open}}", os="debian12", types="p4d.24xlarge")
    for rule in (rules.distribution_has_driver, *(rule for _, rule in rules.DISTRIBUTION_RULES)):
        assert list(rule(vendors, {"nvidia_driver": "580.178.04"})) == []


def test_flavour_is_packaged() -> None:
    assert list(rules.distribution_has_flavour(asked(), NEWEST)) == []
    assert list(rules.distribution_has_flavour(asked("open"), FORMER)) == []
    (conflict,) = rules.distribution_has_flavour(asked("open"), NEWEST)
    assert (conflict.path, conflict.nearest) == ("nvidia_driver.flavour", "flavour proprietary")
    assert conflict.text == "the archive of debian12 has no open kernel module of driver 535.309.01"


@pytest.mark.parametrize(
    ("found", "named"),
    [
        (asked(types="g5.12xlarge p4d.24xlarge"), "p4d.24xlarge"),
        (asked(fabric_manager={"version": "535.309.01"}), "fabric_manager"),
    ],
)
def test_archive_has_no_fabric_manager(found: ResolveContext, named: str) -> None:
    (conflict,) = rules.distribution_has_companions(found, NEWEST)
    assert conflict.text == f"{named}: the archive of debian12 has no fabric manager and no IMEX"
    assert list(rules.distribution_has_companions(asked(), NEWEST)) == []


def test_module_that_was_seen_not_to_build_is_refused_with_the_kernel() -> None:
    assert list(rules.module_builds_on_kernel(asked(), NEWEST)) == []
    (conflict,) = rules.module_builds_on_kernel(asked("open"), FORMER)
    assert conflict.text == (
        "the open kernel module of driver 535.261.03 does not build on kernel 6.1.0-56-cloud-amd64: "
        "pci_resize_resource takes other arguments since"
    )
    assert conflict.nearest == "driver 535.309.01 with flavour proprietary"


def with_builds(found: ResolveContext, *builds: dict[str, Any]) -> ResolveContext:
    table = found.facts.distribution_drivers
    system = table["systems"]["debian12"] | {"builds": list(builds)}
    facts = Facts({**found.facts.tables, "distribution_drivers": {"systems": {"debian12": system}}})
    return dataclasses.replace(found, facts=facts)


def built(kernel: str, builds: bool) -> dict[str, Any]:
    row = {"kernel": kernel, "driver": "535.309.01", "flavour": "proprietary", "builds": builds}
    return row | {"error": "no such function", "source": "here", "date": "2026-11-22"}


def test_newest_kernel_of_the_series_decides() -> None:
    better = with_builds(asked(), built("6.1.0-9-cloud-amd64", False), built("6.1.0-56-cloud-amd64", True))
    assert list(rules.module_builds_on_kernel(better, NEWEST)) == []
    worse = with_builds(asked(), built("6.1.0-9-cloud-amd64", True), built("6.1.0-56-cloud-amd64", False))
    (conflict,) = rules.module_builds_on_kernel(worse, NEWEST)
    assert "6.1.0-56-cloud-amd64: no such function" in conflict.text
    other_series = with_builds(asked(), built("6.12.9-1-cloud-amd64", False))
    assert list(rules.module_builds_on_kernel(other_series, NEWEST)) == []
