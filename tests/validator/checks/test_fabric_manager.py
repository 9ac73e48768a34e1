"""Each check of the fabric manager, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import METADATA, FakeMachine, Judge
from validator.checks import fabric_manager as fm
from validator.plan import as_plan

P4D = FakeMachine(METADATA, instance_type="p4d.24xlarge")
SECTION: dict[str, Any] = {
    "version": "550.163.01", "package": "nvidia-fabricmanager-550", "package_version": "550.163.01-1",
    "instance_types": ["p4d.24xlarge"],
}  # fmt: skip
TYPES = [{"name": "g5.12xlarge", "nvswitch": False}, {"name": "p4d.24xlarge", "nvswitch": True}]
PLAN = as_plan({"os": {"family": "debian"}, "instance_types": TYPES, "fabric_manager": SECTION})
B200 = as_plan({"os": {"family": "debian"}, "fabric_manager": SECTION | {"nvlsm_instance_types": ["p6-b200.48xlarge"]}})
PROC = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build  (dvs@u)\n"
SAID = "Fabric Manager version is : 550.163.01\n"
ACTIVE = "ActiveState=active\nSubState=running\nResult=success\nConditionResult=yes\n"
LEFT_OUT = "ActiveState=inactive\nSubState=dead\nResult=success\nConditionResult=no\n"
# ExecCondition of EKS's newer NVIDIA AMIs (amazon-eks-ami, nvidia-fabricmanager-condition.conf).
SKIPPED = "ActiveState=inactive\nSubState=dead\nResult=exec-condition\nConditionResult=yes\n"
FAILED = "ActiveState=failed\nSubState=failed\nResult=exit-code\nConditionResult=yes\n"
SWITCHES = {"ls*nvswitch*": "0000:c4:00.0\n0000:c5:00.0\n"}
INSTALLED = "nvidia-fabricmanager-550 installed 550.163.01-1\n"

CASES: list[tuple[Any, dict[str, Any], dict[str, Any], str, str]] = [
    (fm.test_fabric_manager_is_the_planned_version, {"nv-*": SAID}, {}, "PASS", ""),
    (
        fm.test_fabric_manager_is_the_planned_version, {"nv-*": SAID.replace("163.01", "144.03")}, {}, "FAIL",
        "nv-fabricmanager --version: expected '550.163.01', got '550.144.03'",
    ),
    (
        fm.test_fabric_manager_is_the_planned_version, {"nv-*": (127, "", "nv-fabricmanager: not found")}, {}, "FAIL",
        "nv-fabricmanager --version exited with status 127: nv-fabricmanager: not found",
    ),
    (fm.test_fabric_manager_is_of_the_driver_s_version, {"cat*": PROC, "nv-*": SAID}, {}, "PASS", ""),
    (
        fm.test_fabric_manager_is_of_the_driver_s_version,
        {"cat*": PROC.replace("163.01", "163.02"), "nv-*": SAID}, {}, "FAIL",
        "nv-fabricmanager --version with loaded driver 550.163.02: expected '550.163.02'",
    ),
    (
        fm.test_fabric_manager_is_of_the_driver_s_version, {"cat*": (1, "", "No such file")}, {}, "UNPROVEN",
        "no NVIDIA driver is loaded",
    ),
    (fm.test_packages_are_the_planned_ones, {"dpkg-query*": INSTALLED}, {}, "PASS", ""),
    (
        fm.test_packages_are_the_planned_ones, {"dpkg-query*": INSTALLED.replace("163.01", "144.03")}, {}, "FAIL",
        "got {'nvidia-fabricmanager-550': '550.144.03-1'}",
    ),
    (fm.test_packages_are_held, {"apt-mark*": "nvidia-fabricmanager-550\n"}, {}, "PASS", ""),
    (fm.test_packages_are_held, {"apt-mark*": "\n"}, {}, "FAIL", "not held"),
    (fm.test_fabric_manager_is_enabled, {"systemctl*": "enabled\n"}, {}, "PASS", ""),
    (
        fm.test_fabric_manager_is_enabled, {"systemctl*": (1, "disabled\n")}, {}, "FAIL",
        "systemctl is-enabled nvidia-fabricmanager.service: expected 'enabled', got 'disabled'",
    ),
    (fm.test_fabric_manager_runs_where_nvswitch_is, {"systemctl*": ACTIVE}, {"machine": P4D}, "PASS", ""),
    (
        fm.test_fabric_manager_runs_where_nvswitch_is, {"systemctl*": LEFT_OUT} | SWITCHES, {"machine": P4D}, "FAIL",
        "on p4d.24xlarge, which has NVSwitches (the driver shows 2): expected active, got inactive (success)",
    ),
    (
        fm.test_fabric_manager_runs_where_nvswitch_is, {"systemctl*": FAILED} | SWITCHES, {"machine": P4D}, "FAIL",
        "failed (exit-code)",
    ),
    (fm.test_fabric_manager_runs_where_nvswitch_is, {"systemctl*": LEFT_OUT}, {}, "PASS", ""),
    (fm.test_fabric_manager_runs_where_nvswitch_is, {"systemctl*": SKIPPED}, {}, "PASS", ""),
    (
        fm.test_fabric_manager_runs_where_nvswitch_is, {"systemctl*": SKIPPED} | SWITCHES, {"machine": P4D}, "FAIL",
        "expected active, got inactive (exec-condition)",
    ),
    (
        fm.test_fabric_manager_runs_where_nvswitch_is, {"systemctl*": FAILED}, {}, "FAIL",
        "nvidia-fabricmanager.service on g5.12xlarge, which has no NVSwitch: expected inactive, got failed",
    ),
    (
        fm.test_subnet_manager_is_there_where_it_is_needed,
        {"dpkg-query*": "nvlsm installed 2025.03.1-1\n", "cat*": "ib_umad\n"}, {"plan": B200}, "PASS", "",
    ),
    (
        fm.test_subnet_manager_is_there_where_it_is_needed, {"dpkg-query*": "", "cat*": "ib_umad\n"}, {"plan": B200},
        "FAIL", "for p6-b200.48xlarge: nvlsm is missing, ib_umad is loaded at boot",
    ),
    (
        fm.test_subnet_manager_is_there_where_it_is_needed,
        {"dpkg-query*": "nvlsm installed 2025.03.1-1\n", "cat*": ""}, {"plan": B200}, "FAIL", "ib_umad is not loaded",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "table", "others", "verdict", "message"), CASES)
def test_fabric_manager(
    judge: Judge, check: Any, table: dict[str, Any], others: dict[str, Any], verdict: str, message: str
) -> None:
    found = judge(check, table, **({"plan": PLAN} | others))
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("Fabric Manager version is : 610.57.04\nBuild Info - Branch: rel/gpu_drv/r610/r610_85-4\n", "610.57.04"),
        ("\n\n\tFabric Manager version is : 535.161.08\n\n", "535.161.08"),
        ("Usage: nv-fabricmanager\n", ""),
    ],
)
def test_version_in_program_output(text: str, version: str) -> None:
    assert fm.PROGRAM.version(text) == version
