"""Rules of the driver, each with versions on both sides of its bound; the operating system's own driver."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from gpu_ami.recipes.facts.tables import Facts
from gpu_ami.recipes.rules import driver as rules
from gpu_ami.recipes.rules.resolve_context import ResolveContext, Rule
from tests.recipes.conftest import context

H100, A10G = "p5.48xlarge", "g5.xlarge"


@pytest.mark.parametrize(
    ("rule", "recipe", "types", "refused", "accepted", "says"),
    [
        (rules.driver_runs_cuda, "", A10G, "nvidia_driver=570.211.01 cuda=13.0", "nvidia_driver=580.65.06 cuda=13.0",
         "driver 570.211.01 cannot run CUDA 13.0: needs ≥ 580.65.06"),
        (rules.driver_runs_cuda, "cuda: {version: '13.0', forward_compatibility: true}", A10G,
         "nvidia_driver=525.60.13 cuda=13.0", "nvidia_driver=570.211.01 cuda=13.0",
         "and cuda-compat of CUDA 13 runs on R535, R550, R570, R575"),
        (rules.gpu_runs_driver, "", "p3.2xlarge", "nvidia_driver=590.44.01", "nvidia_driver=580.178.04",
         "driver 590.44.01 no longer supports Tesla V100-SXM2-16GB (p3.2xlarge): R580 is the last"),
        (rules.gpu_runs_driver, "", "g7.2xlarge", "nvidia_driver=590.48.01", "nvidia_driver=595.45.04", "needs ≥ 595"),
        (rules.gpu_runs_cuda, "", "p3.2xlarge", "cuda=13.0", "cuda=12.9", "CUDA 13.0 no longer supports Tesla V100"),
        (rules.gpu_runs_cuda, "", "p6-b200.48xlarge", "cuda=12.6", "cuda=12.8", "Blackwell starts with CUDA 12.8"),
        (rules.repository_has_driver, "", A10G, "nvidia_driver=550.163.01", "nvidia_driver=570.211.01",
         "NVIDIA's repository for al2023 has no driver 550.163.01: it holds from 560 on"),
        (rules.repository_has_cuda, "", A10G, "cuda=12.4", "cuda=12.5", "no CUDA 12.4: it holds from 12.5 on"),
        (rules.fabric_manager_matches, "fabric_manager: {version: 580.95.05}", H100, "nvidia_driver=580.178.04",
         "nvidia_driver=580.95.05", "fabric manager 580.95.05 does not start with driver 580.178.04"),
        (rules.fabric_manager_matches, "imex: {version: 580.95.05}", H100, "nvidia_driver=580.178.04",
         "nvidia_driver=580.95.05", "IMEX 580.95.05 does not start with driver 580.178.04"),
    ],
)  # fmt: skip
def test_rule_refuses_one_side_of_its_bound(
    rule: Rule, recipe: str, types: str, refused: str, accepted: str, says: str
) -> None:
    surroundings = context(recipe, types=types)
    (conflict,) = rule(surroundings, dict(pair.split("=") for pair in refused.split()))
    assert says in conflict.text
    assert conflict.source
    assert list(rule(surroundings, dict(pair.split("=") for pair in accepted.split()))) == []


@pytest.mark.parametrize(
    ("rule", "component"),
    [(rules.cudnn_fits_cuda, "cudnn"), (rules.nccl_fits_cuda, "nccl"), (rules.dcgm_fits_cuda, "dcgm")],
)
def test_library_is_for_the_cuda_versions_of_its_row(rule: Rule, component: str) -> None:
    surroundings = context()
    releases = surroundings.facts.releases(component)
    release, row = next((name, row) for name, row in releases.items() if "13" not in row["cuda"])
    assert list(rule(surroundings, {component: release, "cuda": f"{row['cuda'][-1]}.0"})) == []
    (conflict,) = rule(surroundings, {component: release, "cuda": "13.0"})
    assert conflict.path == f"{component}.version"
    assert conflict.change == (component, "cuda")
    assert f"{release} is not built for CUDA 13.0" in conflict.text


@pytest.mark.parametrize(
    ("flavour", "types", "nearest"),
    [
        ("open", "p3.2xlarge", ["flavour proprietary"]),
        ("proprietary", "p6-b200.48xlarge", ["flavour open"]),
        ("open", "p3.2xlarge p6-b200.48xlarge", ["flavour boot (both modules, chosen by PCI id)"]),
        ("boot", "p3.2xlarge p6-b200.48xlarge", []),
        ("open", A10G, []),
    ],
)
def test_flavour_must_drive_every_gpu(flavour: str, types: str, nearest: list[str]) -> None:
    surroundings = context(f"nvidia_driver: {{flavour: {flavour}}}", types=types)
    conflicts = rules.flavour_fits(surroundings, {"nvidia_driver": "570.211.01"})
    assert [conflict.nearest for conflict in conflicts] == nearest


@pytest.mark.parametrize(("flavour", "count"), [("open", 1), ("proprietary", 0)])
def test_gsp_is_switched_off_with_the_proprietary_module_only(flavour: str, count: int) -> None:
    surroundings = context(f"nvidia_driver: {{flavour: {flavour}, gsp: false}}")
    assert len(list(rules.gsp_can_be_off(surroundings, {}))) == count


def test_flavours_of_gpus_with_efa_do_not_run_in_a_circle() -> None:
    """`boot` is refused with EFA, and its refusal names the other two: neither names what the other one refuses."""
    types = "p3.2xlarge p6-b200.48xlarge"
    surroundings = context("nvidia_driver: {flavour: open}\nefa: {version: 1.50.0}", types=types)
    (conflict,) = rules.flavour_fits(surroundings, {"nvidia_driver": "570.211.01"})
    assert conflict.nearest == "an image for each, or flavour boot without efa"


def test_gpus_without_a_common_driver_need_an_image_each() -> None:
    (conflict,) = rules.gpu_runs_driver(context(types="p3.2xlarge g7.2xlarge"), {"nvidia_driver": "595.45.04"})
    assert conflict.change == ()
    assert conflict.nearest.startswith("build an image for each, as no driver supports all: p3.2xlarge with 580.")


def test_lower_of_minimum_and_floor_is_what_is_needed() -> None:
    assert rules.oldest_driver("580.95.05", "580.65.06") == "580.65.06"
    assert rules.oldest_driver("525.60.13", "525.85.12") == "525.60.13"


@pytest.mark.parametrize(("driver", "native"), [("580.95.05", True), ("580.82.07", False)])
def test_native_driver_is_at_least_the_toolkits_minimum(driver: str, native: bool) -> None:
    assert rules.runs_natively(context(), driver, "13.0") is native


def test_driver_of_the_base_ami_needs_no_repository() -> None:
    provided = context("node_version: 3.16.3", node="parallelcluster")
    assert list(rules.repository_has_driver(provided, {"nvidia_driver": "550.163.01"})) == []


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
