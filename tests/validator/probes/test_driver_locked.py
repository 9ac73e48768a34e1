"""Programs that must be of exactly the loaded driver's version."""

from __future__ import annotations

import pytest

from tests.validator.checks.conftest import table_host
from validator.observe import Observe
from validator.probes.driver_locked import Program
from validator.results import RunningCheck

MANAGER = Program("nv-fabricmanager", "Fabric Manager version is")
SAYS = "Fabric Manager version is : 580.95.05\n"
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  {}  Release Build  (root@host)\nGCC version: 12.2\n"


@pytest.mark.parametrize(
    ("text", "version"),
    [
        (SAYS, "580.95.05"),
        ("Starting\n  Fabric Manager version is: 580.95.05 (x86_64)\n", "580.95.05"),
        ("The Fabric Manager version is : 580.95.05\n", ""),
        ("580.95.05\n", ""),
        ("", ""),
    ],
)
def test_version_is_read_from_its_line(text: str, version: str) -> None:
    assert MANAGER.version(text) == version


def test_planned_version(observe: Observe, running: RunningCheck) -> None:
    MANAGER.check_planned(table_host({"nv-fabricmanager --version": SAYS}), "580.95.05", observe)
    assert (running.record.observed, running.record.planned) == ("580.95.05", "580.95.05")
    with pytest.raises(pytest.fail.Exception, match=r"--version: expected '580\.95\.06', got '580\.95\.05'"):
        MANAGER.check_planned(table_host({"nv-fabricmanager --version": SAYS}), "580.95.06", observe)


def test_program_that_does_not_run(observe: Observe) -> None:
    host = table_host({"nv-fabricmanager --version": (127, "", "not found\n")})
    with pytest.raises(pytest.fail.Exception, match="nv-fabricmanager --version exited with status 127: not found"):
        MANAGER.check_planned(host, "580.95.05", observe)


@pytest.mark.parametrize(("loaded", "passes"), [("580.95.05", True), ("580.95.06", False), ("580.95", False)])
def test_loaded_driver(observe: Observe, loaded: str, passes: bool) -> None:
    table = {"nv-fabricmanager --version": SAYS, "cat /proc/driver/nvidia/version": DRIVER.format(loaded)}
    if passes:
        MANAGER.check_of_loaded_driver(table_host(table), observe)
        return
    with pytest.raises(
        pytest.fail.Exception, match=f"with loaded driver {loaded}: expected '{loaded}', got '580.95.05'"
    ):
        MANAGER.check_of_loaded_driver(table_host(table), observe)


def test_without_a_loaded_driver_it_is_unproven(observe: Observe) -> None:
    host = table_host({"cat /proc/driver/nvidia/version": (1, "", "No such file")})
    with pytest.raises(pytest.skip.Exception, match="no NVIDIA driver is loaded"):
        MANAGER.check_of_loaded_driver(host, observe)
