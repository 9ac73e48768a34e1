"""Each check of the GRID driver, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from validator.checks import grid_driver, nvidia_driver
from validator.plan import as_plan

RUN = "NVIDIA-Linux-x86_64-580.65.06-grid-aws.run"
DRIVER = {
    "version": "580.65.06", "source": "grid", "url": f"https://bucket.example/grid-19.0/{RUN}",
    "licence_settings": {"EnableUI": "FALSE"},
}  # fmt: skip
PLAN = as_plan({"os": {"family": "debian"}, "nvidia_driver": DRIVER})
RPM_PLAN = as_plan({"os": {"family": "redhat"}, "nvidia_driver": DRIVER})
L4, BOARD = "0000:31:00.0 0x10de 0x27b8 0x030200 nvidia\n", "0000:31:00.0 0x1af4 0x1110 0x030200 nvidia\n"
LICENSED = "    vGPU Software Licensed Product\n        License Status                    : Licensed (Expiry: N/A)\n"

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (grid_driver.test_no_driver_package_is_installed, {"dpkg-query*": "installed dpkg\ninstalled dkms\n"}, "PASS", ""),
    (
        grid_driver.test_no_driver_package_is_installed,
        {"dpkg-query*": "installed dpkg\ninstalled nvidia-utils-570\nconfig-files nvidia-smi\n"},
        "FAIL",
        "packages of another driver beside the GRID driver: nvidia-utils-570",
    ),
    (grid_driver.test_licence_daemon_has_its_settings, {"cat*": "# made\nEnableUI=FALSE\n"}, "PASS", ""),
    (
        grid_driver.test_licence_daemon_has_its_settings,
        {"cat*": "EnableUI=FALSE\nFeatureType=0\n"},
        "FAIL",
        "/etc/nvidia/gridd.conf: expected {'EnableUI': 'FALSE'}, got {'EnableUI': 'FALSE', 'FeatureType': '0'}",
    ),
    (grid_driver.test_licence_daemon_runs, {"*is-active*": "active\n", "*is-enabled*": "enabled\n"}, "PASS", ""),
    (
        grid_driver.test_licence_daemon_runs,
        {"*is-active*": (3, "inactive\n"), "*is-enabled*": "enabled\n"},
        "FAIL",
        "nvidia-gridd.service: expected active, enabled, got inactive, enabled",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_grid_driver(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=PLAN)
    assert (found.verdict, message in found.message) == (verdict, True), found.message


@pytest.mark.parametrize(
    ("pci", "shown", "verdict", "message"),
    [
        (L4, LICENSED, "PASS", ""),
        (
            L4,
            LICENSED.replace("Licensed (Expiry: N/A)", "Unlicensed (Restricted)"),
            "FAIL",
            "got Unlicensed (Restricted)",
        ),
        (L4, "Driver Version : 580.65.06\n", "FAIL", "License Status of 1 GPUs: expected Licensed, got none"),
        (BOARD, LICENSED, "UNPROVEN", "GRID licensing cannot be tested on simulated GPUs"),
    ],
)
def test_licence_of_every_gpu(judge: Judge, pci: str, shown: str, verdict: str, message: str) -> None:
    found = judge(grid_driver.test_every_gpu_is_licensed, {"for d in*": pci, "nvidia-smi -q": shown}, plan=PLAN)
    assert (found.verdict, message in found.message) == (verdict, True), found.message


def test_packages_of_another_driver_are_seen_by_rpm(judge: Judge) -> None:
    table = {"rpm -q rpm": "rpm-4.16.1.3", "rpm -qa*": "installed glibc\ninstalled kmod-nvidia-open-dkms\n"}
    found = judge(grid_driver.test_no_driver_package_is_installed, table, plan=RPM_PLAN)
    assert found.verdict == "FAIL" and "kmod-nvidia-open-dkms" in found.message


@pytest.mark.parametrize(
    "check",
    [
        nvidia_driver.test_packages_are_the_planned_ones,
        nvidia_driver.test_packages_are_held,
        nvidia_driver.test_files_are_the_packages_own,
    ],
)
def test_checks_of_packages_say_why_they_prove_nothing(judge: Judge, check: Any) -> None:
    found = judge(check, {}, plan=PLAN)
    assert (found.verdict, found.message) == ("UNPROVEN", f"nvidia_driver is installed by {RUN}, not from packages")


def test_dkms_is_expected_of_the_grid_driver(judge: Judge) -> None:
    table = {"dkms status*": "", "cd /lib/modules*": "6.8.0-1\n"}
    found = judge(nvidia_driver.test_dkms_built_for_every_kernel, table, plan=PLAN)
    assert found.verdict == "FAIL" and "DKMS has no nvidia 580.65.06 installed for kernel 6.8.0-1" in found.message
