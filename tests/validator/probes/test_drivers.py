"""Which of a base AMI's drivers is planned for a machine, and where its files are not installed yet.

Programs that must be of exactly the loaded driver's version.
Since when the fabric manager runs, and what its log says since then.
"""

from __future__ import annotations

import hashlib
import re
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import testinfra

from tests.scripted_host import ScriptedHost, table_host
from tests.validator.checks.conftest import METADATA, FakeMachine
from validator.checks import hardware
from validator.observe import Observe
from validator.plan import as_plan
from validator.plan_document import PlanDocument
from validator.probes import base_driver
from validator.probes.base_driver import Program
from validator.results import RunningCheck
from validator.transport import backend

ONE = as_plan({"nvidia_driver": {"version": "595.112.07", "provided_by": "parallelcluster 3.16.3"}})
TWO = as_plan({
    "nvidia_driver": {
        "version": "580.178.04",
        "branches": {
            "lts": {"version": "580.178.04", "tree": "/opt/nvidia/lts", "instance_types": ["g5.12xlarge"]},
            "pb": {"version": "595.91.07", "instance_types": ["g7.12xlarge"]},
        },
    }
})  # fmt: skip


def machine(instance_type: str) -> FakeMachine:
    return FakeMachine(METADATA, instance_type=instance_type)


def test_version_is_that_of_the_type_where_there_are_several() -> None:
    assert base_driver.version(ONE, machine("g7.12xlarge")) == "595.112.07"  # type: ignore[arg-type]
    assert base_driver.version(TWO, machine("g5.12xlarge")) == "580.178.04"  # type: ignore[arg-type]
    assert base_driver.version(TWO, machine("g7.12xlarge")) == "595.91.07"  # type: ignore[arg-type]
    with pytest.raises(pytest.skip.Exception, match=r"the plan has no driver branch for p5\.48xlarge"):
        base_driver.planned_branch(TWO, "p5.48xlarge")


def test_registered_files_are_those_of_the_taken_tree() -> None:
    host = table_host({"*": "/usr/src/nvidia-580.178.04/nv.c\n/usr/bin/nvidia-smi\n"})
    assert base_driver.registered_files(host, TWO) == {"/usr/src/nvidia-580.178.04/nv.c", "/usr/bin/nvidia-smi"}
    assert host.backend.asked[0].count("/opt/nvidia/current/") == 3
    assert base_driver.registered_files(host, ONE) == frozenset() == base_driver.registered_files(host, as_plan({}))


def test_machine_has_what_an_image_has_not_yet() -> None:
    host = testinfra.get_host("local://")
    base_driver.require_installed(host, TWO, "x")
    # testinfra gives every caller the same host: a changed one would be that of later tests, too.
    image = SimpleNamespace(backend=object.__new__(base_driver.backend.ImageBackend))
    base_driver.require_installed(image, ONE, "x")
    with pytest.raises(
        pytest.skip.Exception, match=r"at the first boot on a machine with a GPU: see driver_branches::x"
    ):
        base_driver.require_installed(image, TWO, "driver_branches::x")


class FilesOfAnImage(ScriptedHost, backend.ImageBackend):
    """A table that is asked as an image's files are."""


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
        MANAGER.check_of_driver(table_host(table), ONE, observe)
        return
    with pytest.raises(
        pytest.fail.Exception, match=f"with loaded driver {loaded}: expected '{loaded}', got '580.95.05'"
    ):
        MANAGER.check_of_driver(table_host(table), ONE, observe)


def test_without_a_loaded_driver_it_is_unproven(observe: Observe) -> None:
    host = table_host({"cat /proc/driver/nvidia/version": (1, "", "No such file")})
    with pytest.raises(pytest.skip.Exception, match="no NVIDIA driver is loaded"):
        MANAGER.check_of_driver(host, ONE, observe)


@pytest.mark.parametrize(("on_disk", "plan", "outcome", "message"), [
    ("6.1.0-40 580.95.05\n6.1.0-41 missing\n", ONE, None, ""),
    ("6.1.0-40 580.95.06\n", ONE, pytest.fail, "with module 580.95.06 on disk: expected 580.95.06, got '580.95.05'"),
    ("6.1.0-40 580.95.05\n6.1.0-41 580.95.06\n", ONE, pytest.fail, "with module 580.95.05, 580.95.06 on disk"),
    ("6.1.0-40 missing\n", ONE, pytest.skip, "no kernel of the image has a module of the driver"),
    ("6.1.0-40 missing\n", TWO, pytest.skip, "installs its driver at the first boot"),
])  # fmt: skip
def test_modules_of_image_files(observe: Observe, on_disk: str, plan: PlanDocument, outcome: Any, message: str) -> None:
    host = testinfra.host.Host(FilesOfAnImage({"nv-fabricmanager --version": SAYS, "for k in *": on_disk}))
    host.backend.set_host(host)
    if outcome is None:
        MANAGER.check_of_driver(host, plan, observe)
        return
    with pytest.raises(outcome.Exception, match=re.escape(message)):
        MANAGER.check_of_driver(host, plan, observe)


START = "[Nov 25 2026 10:00:00] [INFO] [tid 1] Fabric Manager version 580.105.08 is running with the following options"
ROUTED = "[INFO] Successfully configured all the available NVSwitches to route GPU NVLink traffic."
OLDER = "[INFO] Successfully configured all the available GPUs and NVSwitches to route NVLink traffic."


@pytest.mark.parametrize("line", [ROUTED, OLDER])
def test_log_of_its_last_start_says_whether_the_switches_are_routed(line: str) -> None:
    assert hardware.read(f"100\n40000000\n{START}\n{line}\n").is_routed
    again = hardware.read(f"100\n40000000\n{START}\n{line}\n{START}\n[ERROR] no\n")
    assert (again.is_routed, again.seconds, again.log) == (False, 60.0, (START, "[ERROR] no"))
    assert str(again) == f"active for 60 s, the last lines of {hardware.LOG}: {START} | [ERROR] no"


@pytest.mark.parametrize("printed", ["", "100\n", "100\n0\n", "100\n\n"])
def test_nothing_is_not_routed(printed: str) -> None:
    manager = hardware.read(printed)
    assert (manager.seconds, manager.log, manager.is_routed) == (0.0, (), False)


MODPROBES = ["/opt/nvidia/lts/usr/bin/nvidia-modprobe", "/opt/nvidia/pb/usr/bin/nvidia-modprobe"]
# `rpm --query --package --dump`: path, size, time, digest, mode, owner, group, and four flags.
DUMP = "/usr/bin/nvidia-modprobe 4 1795219200 {} 0104755 root root 0 0 0 X"


@pytest.mark.parametrize(
    ("mode", "content", "same"), [(0o4755, "elf\n", True), (0o6755, "elf\n", False), (0o4755, "sh\n", False)]
)
def test_modprobe_of_a_kept_driver_is_known_by_its_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, content: str, same: bool
) -> None:
    """EKS's AMI of 2026-09-23 failed: rpm does not know the programs in its driver trees before the first boot."""
    for tree in ("lts", "pb"):
        folder = tmp_path / "nvidia" / tree
        (folder / "usr" / "bin").mkdir(parents=True)
        (folder / ".rpms").mkdir()
        (folder / ".rpms" / "nvidia-modprobe-580.178.04-1.amzn2023.x86_64.rpm").touch()
        program = folder / "usr" / "bin" / "nvidia-modprobe"
        program.write_text("elf\n" if tree == "pb" else content)
        program.chmod(0o4755 if tree == "pb" else mode)
    (tmp_path / "rpm").write_text(f"#!/bin/sh\necho {DUMP.format(hashlib.sha256(b'elf' + bytes([10])).hexdigest())}\n")
    (tmp_path / "rpm").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")

    def there(command: str) -> tuple[int, str]:
        done = subprocess.run(
            ["sh", "-c", command.replace("/opt/", f"{tmp_path}/")], capture_output=True, text=True, check=True
        )
        return 0, done.stdout.replace(f"{tmp_path}/", "/opt/")

    paths = [*MODPROBES, "/opt/nvidia/lts/usr/bin/su", "/opt/other/usr/bin/nvidia-modprobe"]
    assert base_driver.kept_modprobes(table_host(there), paths) == MODPROBES[0 if same else 1 :]
