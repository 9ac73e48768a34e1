"""Each tuning check, once green and once red with its message."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from tests.validator.checks.conftest import METADATA, REAL_DRIVER, REPLICA, FakeMachine, Judge
from validator.checks import tuning
from validator.plan import as_plan

SECTION: dict[str, Any] = {
    "memlock": "unlimited",
    "sysctl": {"net.ipv4.tcp_congestion_control": "bbr", "net.ipv4.tcp_rmem": "4096 87380 67108864"},
    "clocks": {"NVIDIA A10G": [6250, 1710]}, "mig": {"p4d.24xlarge": "3g.20gb,3g.20gb"},
}  # fmt: skip
PLAN = as_plan({"tuning": SECTION})
LIMITED = as_plan({"tuning": {"memlock": "65536"}})
GPU_IN_MIG_MODE: Any = SimpleNamespace(index=3, mig="Enabled")
P4D = FakeMachine(METADATA, instance_type="p4d.24xlarge")
SYSCTL = "net.ipv4.tcp_congestion_control = bbr\nnet.ipv4.tcp_rmem = 4096\t87380\t67108864\n"
CLOCKS = "0, NVIDIA A10G, 6251, 1710\n1, NVIDIA A10G, 6251, 1710\n"
WHOLE = "GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-0)\nGPU 1: NVIDIA A100-SXM4-40GB (UUID: GPU-1)\n"
DEVICES = "  MIG 3g.20gb     Device  0: (UUID: MIG-0)\n  MIG 3g.20gb     Device  1: (UUID: MIG-1)\n"
DIVIDED = "".join(f"{line}\n{DEVICES}" for line in WHOLE.splitlines())

CASES: list[tuple[Any, dict[str, Any], dict[str, Any], str, str]] = [
    (tuning.test_users_may_lock_memory, {"su*": "unlimited\n"}, {}, "PASS", ""),
    (
        tuning.test_users_may_lock_memory, {"su*": "8192\n"}, {}, "FAIL",
        "`ulimit -l` of a user who logged in: expected 'unlimited', got '8192'",
    ),
    (tuning.test_services_may_lock_memory, {"systemctl*": "infinity\n"}, {}, "PASS", ""),
    (tuning.test_services_may_lock_memory, {"systemctl*": "67108864\n"}, {"plan": LIMITED}, "PASS", ""),
    (
        tuning.test_services_may_lock_memory, {"systemctl*": "8388608\n"}, {}, "FAIL",
        "systemd's DefaultLimitMEMLOCK: expected 'infinity', got '8388608'",
    ),
    (tuning.test_kernel_settings_are_the_planned_ones, {"sysctl*": SYSCTL}, {}, "PASS", ""),
    (
        tuning.test_kernel_settings_are_the_planned_ones, {"sysctl*": SYSCTL.replace("bbr", "cubic")}, {}, "FAIL",
        "'net.ipv4.tcp_congestion_control': 'cubic'",
    ),
    (
        tuning.test_kernel_settings_are_the_planned_ones, {"sysctl*": SYSCTL.splitlines()[0]}, {}, "FAIL",
        "'net.ipv4.tcp_rmem': 'missing'",
    ),
    (tuning.test_kernel_settings_are_the_planned_ones, {}, {"plan": LIMITED}, "UNPROVEN", "no kernel settings"),
    (tuning.test_gpus_have_the_planned_clocks, {"nvidia-smi*": CLOCKS}, {}, "PASS", ""),
    (
        tuning.test_gpus_have_the_planned_clocks, {"nvidia-smi*": CLOCKS.replace("6251, 1710", "6251, 1320", 1)}, {},
        "FAIL", "GPU 0 (NVIDIA A10G): expected 6250, 1710, got 6251, 1320",
    ),
    (
        tuning.test_gpus_have_the_planned_clocks, {"nvidia-smi*": CLOCKS.replace("6251", "[N/A]")}, {}, "FAIL",
        "GPU 1 (NVIDIA A10G): expected 6250, 1710, got [N/A], 1710",
    ),
    (
        tuning.test_gpus_have_the_planned_clocks, {"nvidia-smi*": CLOCKS.replace("A10G", "L4")}, {}, "UNPROVEN",
        "no clocks are planned for NVIDIA L4",
    ),
    (
        tuning.test_gpus_have_the_planned_clocks, REAL_DRIVER | {"nvidia-smi*": (9, "no driver\n")}, {}, "UNPROVEN",
        "the 1 boards are simulated",
    ),
    (
        tuning.test_gpus_have_the_planned_clocks, REPLICA | {"nvidia-smi*": (9, "no driver\n")}, {}, "FAIL",
        "9: no driver",
    ),
    (tuning.test_gpus_have_the_planned_clocks, {}, {"plan": LIMITED}, "UNPROVEN", "the plan has no clocks"),
    (tuning.test_units_are_enabled, {"systemctl*": "enabled\n"}, {}, "PASS", ""),
    (
        tuning.test_units_are_enabled, {"*mig*": (1, "disabled\n"), "systemctl*": "enabled\n"}, {}, "FAIL",
        "'nvidia-mig.service': 'disabled'",
    ),
    (tuning.test_units_are_enabled, {}, {"plan": LIMITED}, "UNPROVEN", "neither clocks nor MIG"),
    (tuning.test_units_have_not_failed, {"systemctl*": "active\n"}, {}, "PASS", ""),
    (tuning.test_units_have_not_failed, {"systemctl*": "inactive\n"}, {}, "PASS", ""),
    (
        tuning.test_units_have_not_failed, {"*mig*": "failed\n", "systemctl*": "active\n"}, {}, "FAIL",
        "nvidia-mig.service is failed: `journalctl -u` shows the GPU and the reason",
    ),
    (
        tuning.test_mig_devices_are_the_planned_ones, REAL_DRIVER | {"nvidia-smi*": (9, "no driver\n")},
        {"machine": P4D}, "UNPROVEN", "the 1 boards are simulated",
    ),
    (
        tuning.test_mig_devices_are_the_planned_ones, REPLICA | {"nvidia-smi*": (9, "no driver\n")}, {"machine": P4D},
        "FAIL", "nvidia-smi -L exited with status 9: no driver",
    ),
    (tuning.test_mig_devices_are_the_planned_ones, {"nvidia-smi*": DIVIDED}, {"machine": P4D}, "PASS", ""),
    (
        tuning.test_mig_devices_are_the_planned_ones, {"nvidia-smi*": WHOLE + DEVICES}, {"machine": P4D}, "FAIL",
        "MIG devices on p4d.24xlarge: expected 3g.20gb, 3g.20gb, got GPU 0: no MIG devices",
    ),
    (tuning.test_mig_devices_are_the_planned_ones, {"nvidia-smi*": WHOLE}, {}, "PASS", ""),
    (
        tuning.test_mig_devices_are_the_planned_ones, {"nvidia-smi*": DIVIDED}, {}, "FAIL",
        "MIG devices on g5.12xlarge: expected none, got GPU 0: 3g.20gb, 3g.20gb; GPU 1: 3g.20gb, 3g.20gb",
    ),
    (
        tuning.test_mig_devices_are_the_planned_ones, {"nvidia-smi*": WHOLE},
        {"machine": FakeMachine(METADATA, gpus=(GPU_IN_MIG_MODE,))}, "FAIL",
        "MIG is enabled on GPU 3, and the plan has",
    ),
    (tuning.test_mig_devices_are_the_planned_ones, {"nvidia-smi*": WHOLE}, {"plan": LIMITED}, "PASS", ""),
    (
        tuning.test_mig_devices_are_the_planned_ones, {"nvidia-smi*": DIVIDED}, {"plan": LIMITED}, "FAIL",
        "MIG devices on g5.12xlarge: expected none, got GPU 0: 3g.20gb, 3g.20gb; GPU 1: 3g.20gb, 3g.20gb",
    ),
]  # fmt: skip


@pytest.mark.parametrize(("check", "table", "others", "verdict", "message"), CASES)
def test_tuning(
    judge: Judge, check: Any, table: dict[str, Any], others: dict[str, Any], verdict: str, message: str
) -> None:
    found = judge(check, table, **({"plan": PLAN} | others))
    assert (found.verdict, message in found.message) == (verdict, True), found
