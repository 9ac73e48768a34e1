"""The driver's way to user space, once green and once red with each message."""

from __future__ import annotations

import pytest

from tests.validator.checks.conftest import PLAN, PROC, Judge, as_plan
from validator.checks import device_nodes as checks

DRIVER = {"cat /proc/driver/nvidia/version": PROC}
NODES = """\
character special file|666|/dev/nvidiactl
character special file|666|/dev/nvidia-uvm
character special file|666|/dev/nvidia-uvm-tools
character special file|666|/dev/nvidia0
character special file|666|/dev/nvidia1
character special file|400|/dev/nvidia-caps/nvidia-cap1
character special file|444|/dev/nvidia-caps/nvidia-cap2
"""
MINORS = "Model: \t\t NVIDIA A10G\nDevice Minor: \t 0\nDevice Minor: \t 1\n"


@pytest.mark.parametrize(
    ("listed", "verdict", "message"),
    [
        ("6.1.0-56 550.163.01\n6.1.0-57 \n", "PASS", ""),
        (
            "6.1.0-56 550.163.01\n6.1.0-57 missing\n", "FAIL",
            "module nvidia-uvm on disk: expected 550.163.01, got 6.1.0-57: missing",
        ),
        ("6.1.0-56 535.261.03\n", "FAIL", "expected 550.163.01, got 6.1.0-56: 535.261.03"),
        ("", "FAIL", "got no installed kernel"),
    ],
)  # fmt: skip
def test_module_on_disk(judge: Judge, listed: str, verdict: str, message: str) -> None:
    found = judge(checks.test_uvm_module_is_on_disk_for_every_kernel, {"for k in *": listed})
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("modules", "verdict", "message"),
    [
        ("nvidia_uvm 1 0 - Live 0x0\nnvidia 2 1 nvidia_uvm, Live 0x0\n", "PASS", ""),
        ("nvidia_current_uvm 1 0 - Live 0x0\nnvidia_current 2 1 - Live 0x0\n", "PASS", ""),
        ("efa 1 0 - Live 0x0\nnvidia 2 0 - Live 0x0\n", "FAIL", "expected it in /proc/modules, got nvidia"),
    ],
)
def test_module_loaded(judge: Judge, modules: str, verdict: str, message: str) -> None:
    found = judge(checks.test_uvm_module_is_loaded, DRIVER | {"cat /proc/modules": modules})
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("nodes", "capabilities", "verdict", "message"),
    [
        (NODES, 0, "PASS", ""),
        ("".join(NODES.splitlines(keepends=True)[:5]), 1, "PASS", ""),
        (NODES.replace("/dev/nvidia-uvm\n", "/dev/other\n"), 0, "FAIL",
         "/dev/nvidia-uvm: expected mode 666, got no character device"),
        (NODES.replace("character special file|666|/dev/nvidia-uvm-tools", "regular file|666|/dev/nvidia-uvm-tools"), 0,
         "FAIL", "/dev/nvidia-uvm-tools: expected mode 666, got no character device"),
        (NODES.replace("666|/dev/nvidiactl", "660|/dev/nvidiactl"), 0, "FAIL", "nvidiactl: expected mode 666, got 660"),
        (NODES.replace("|/dev/nvidia1", "|/dev/nvidia7"), 0, "FAIL", "/dev/nvidia1: expected mode 666"),
        (NODES.replace("400|", "444|"), 0, "FAIL", "/dev/nvidia-caps/nvidia-cap1: expected mode 400, got 444"),
        ("", 0, "FAIL", "device nodes (nvidia-device-nodes.service creates them): /dev/nvidiactl"),
    ],
)  # fmt: skip
def test_nodes(judge: Judge, nodes: str, capabilities: int, verdict: str, message: str) -> None:
    table = DRIVER | {
        "stat -c *": (0 if nodes else 1, nodes), "cat /proc/driver/nvidia/gpus/*": MINORS,
        "test -e /proc/driver/nvidia/capabilities/mig": (capabilities, ""),
    }  # fmt: skip
    found = judge(checks.test_device_nodes_are_there, table)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("modprobe", "verdict"),
    [("4755:0", "PASS"), ("755:0", "FAIL"), ("4755:1000", "FAIL"), ("", "FAIL")],
)
def test_image_as_found_may_leave_nodes_to_nvidia_modprobe(judge: Judge, modprobe: str, verdict: str) -> None:
    """Its setuid bit: "NVIDIA Driver Installation Guide", nvidia-modprobe(1); libcuda starts it."""
    table = DRIVER | {
        "cat /proc/modules": "nvidia 2 0 - Live 0x0\n", "stat -c *": (1, ""), "stat -L *": modprobe,
        "cat /proc/driver/nvidia/gpus/*": MINORS, "test -e *": (0, ""),
    }  # fmt: skip
    for check in (checks.test_uvm_module_is_loaded, checks.test_device_nodes_are_there):
        assert judge(check, table, plan=as_plan(PLAN | {"origin": "observed"})).verdict == verdict
        assert judge(check, table).verdict == "FAIL"


def test_image_as_found_needs_no_nodes_of_mig(judge: Judge) -> None:
    table = DRIVER | {
        "stat -c *": "".join(NODES.splitlines(keepends=True)[:5]), "stat -L *": (1, ""),
        "cat /proc/driver/nvidia/gpus/*": MINORS, "test -e *": (0, ""),
    }  # fmt: skip
    assert judge(checks.test_device_nodes_are_there, table).verdict == "FAIL"
    observed = as_plan(PLAN | {"origin": "observed"})
    assert judge(checks.test_device_nodes_are_there, table, plan=observed).verdict == "PASS"


def test_without_a_driver_nothing_is_proven(judge: Judge) -> None:
    for check in (checks.test_uvm_module_is_loaded, checks.test_device_nodes_are_there):
        assert judge(check, {"cat /proc/driver/nvidia/version": (1, "")}).verdict == "UNPROVEN"


def test_node_of_mig_that_an_image_as_found_has_is_judged(judge: Judge) -> None:
    table = DRIVER | {
        "stat -c *": NODES.replace("400|", "444|"), "stat -L *": (1, ""),
        "cat /proc/driver/nvidia/gpus/*": MINORS, "test -e *": (0, ""),
    }  # fmt: skip
    found = judge(checks.test_device_nodes_are_there, table, plan=as_plan(PLAN | {"origin": "observed"}))
    assert found.verdict == "FAIL"
    assert "/dev/nvidia-caps/nvidia-cap1: expected mode 400, got 444" in found.message
