"""Each IMEX check, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import METADATA, FakeMachine, Judge
from validator.checks import imex
from validator.plan import as_plan

GB200 = "p6e-gb200.36xlarge"
SECTION: dict[str, Any] = {
    "version": "580.178.04", "package": "nvidia-imex", "package_version": "580.178.04-1ubuntu1",
    "instance_types": [GB200],
}  # fmt: skip
PLAN = as_plan({"os": {"family": "debian"}, "imex": SECTION})
WITHOUT = as_plan({"os": {"family": "debian"}, "imex": SECTION | {"instance_types": []}})
MACHINE = FakeMachine(METADATA, instance_type=GB200)
PROC = "NVRM version: NVIDIA UNIX Open Kernel Module for aarch64  580.178.04  Release Build  (dvs@u)\n"
SAID = "IMEX version is: 580.178.04\n"

CHANNEL = {
    "cat /proc/driver/nvidia/version": PROC,
    "cat /proc/devices": "Character devices:\n497 nvidia-caps\n498 nvidia-caps-imex-channels\n",
    "stat*": "character special file 1f2 0 666\n",
}
CREATING = as_plan(
    {"os": {"family": "debian"}, "imex": SECTION, "nvidia_driver": {"options": {"NVreg_CreateImexChannel0": "1"}}}
)
CREATES: dict[str, Any] = {"plan": CREATING, "machine": MACHINE}

CASES: list[tuple[Any, dict[str, Any], dict[str, Any], str, str]] = [
    (imex.test_imex_is_the_planned_version, {"nvidia-imex*": SAID}, {}, "PASS", ""),
    (
        imex.test_imex_is_the_planned_version, {"nvidia-imex*": SAID.replace("178.04", "159.03")}, {}, "FAIL",
        "nvidia-imex --version: expected '580.178.04', got '580.159.03'",
    ),
    (imex.test_imex_is_the_planned_version, {"nvidia-imex*": (127, "", "not found")}, {}, "FAIL", "with status 127"),
    (imex.test_imex_is_of_the_driver_s_version, {"cat*": PROC, "nvidia-imex*": SAID}, {}, "PASS", ""),
    (
        imex.test_imex_is_of_the_driver_s_version,
        {"cat*": PROC.replace("178.04", "159.03"), "nvidia-imex*": SAID}, {}, "FAIL", "with loaded driver 580.159.03",
    ),
    (imex.test_imex_is_of_the_driver_s_version, {"cat*": (1, "")}, {}, "UNPROVEN", "no NVIDIA driver is loaded"),
    (
        imex.test_packages_are_the_planned_ones, {"dpkg-query*": "nvidia-imex installed 580.178.04-1ubuntu1\n"}, {},
        "PASS", "",
    ),
    (imex.test_packages_are_the_planned_ones, {"dpkg-query*": ""}, {}, "FAIL", "'nvidia-imex': 'missing'"),
    (imex.test_packages_are_held, {"apt-mark*": "nvidia-imex\n"}, {}, "PASS", ""),
    (imex.test_packages_are_held, {"apt-mark*": ""}, {}, "FAIL", "not held"),
    (imex.test_imex_is_enabled_where_a_family_needs_it, {"systemctl*": "enabled\n"}, {}, "PASS", ""),
    (
        imex.test_imex_is_enabled_where_a_family_needs_it, {"systemctl*": (1, "disabled\n")}, {}, "FAIL",
        "systemctl is-enabled nvidia-imex.service: expected 'enabled', got 'disabled'",
    ),
    (
        imex.test_imex_is_enabled_where_a_family_needs_it, {"systemctl*": "enabled\n"}, {"plan": WITHOUT}, "FAIL",
        "expected 'disabled', got 'enabled'",
    ),
    (imex.test_image_lists_no_machines, {"cat*": "# one address a line\n\n", "test -e*": ""}, {}, "PASS", ""),
    (imex.test_image_lists_no_machines, {"test -e*": (1, "")}, {}, "PASS", ""),
    (
        imex.test_image_lists_no_machines, {"cat*": "10.0.0.4\n", "test -e*": ""}, {}, "FAIL",
        "nodes in nodes_config.cfg: 10.0.0.4",
    ),
    (
        imex.test_image_lists_no_machines, {"cat*": (1, "", "Permission denied"), "test -e*": ""}, {}, "FAIL",
        "Permission denied",
    ),
    (imex.test_channel_is_the_driver_s, CHANNEL, CREATES, "PASS", ""),
    (
        # A capability's number under the channel's name, of a public report: cuMemCreate refused with NOT_PERMITTED.
        imex.test_channel_is_the_driver_s,
        CHANNEL | {"stat*": "character special file 1f1 10e3 666\n"}, CREATES, "FAIL",
        "expected character special file 498:0 666, got character special file 497:4323 666",
    ),
    (imex.test_channel_is_the_driver_s, CHANNEL | {"stat*": (1, "", "No such file")}, CREATES, "FAIL", "got missing"),
    (imex.test_channel_is_the_driver_s, CHANNEL, CREATES | {"machine": FakeMachine(METADATA)}, "UNPROVEN", "needs no"),
    (imex.test_channel_is_the_driver_s, CHANNEL, {"machine": MACHINE}, "UNPROVEN", "the plan creates no channel"),
    (imex.test_imex_has_not_failed, {"systemctl*": "inactive\n"}, {"machine": MACHINE}, "PASS", ""),
    (
        imex.test_imex_has_not_failed, {"systemctl*": "failed\n"}, {"machine": MACHINE}, "FAIL",
        "nvidia-imex.service is failed on p6e-gb200.36xlarge, which needs it",
    ),
    (
        imex.test_imex_has_not_failed, {"systemctl*": "active\n"}, {}, "FAIL",
        "is active on g5.12xlarge, which does not need it",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "table", "others", "verdict", "message"), CASES)
def test_imex(
    judge: Judge, check: Any, table: dict[str, Any], others: dict[str, Any], verdict: str, message: str
) -> None:
    found = judge(check, table, **({"plan": PLAN} | others))
    assert (found.verdict, message in found.message) == (verdict, True), found
