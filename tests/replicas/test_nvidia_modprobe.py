"""The replica of nvidia-modprobe makes the nodes that NVIDIA's program makes (its source, release 610.43.03)."""

from __future__ import annotations

import os
import stat
import subprocess
from pathlib import Path

import pytest

from localregion.mirror import Package, find_row
from localregion.mirror.staging import stage

pytestmark = [
    pytest.mark.slow,  # compiles the program
    pytest.mark.skipif(os.geteuid() != 0, reason="only root may make device nodes"),
]

PARAMS = "ModifyDeviceFiles: {modify}\nDeviceFileUID: 0\nDeviceFileGID: 44\nDeviceFileMode: 432\n"
DEVICES = (
    "Character devices:\n195 nvidia-frontend\n234 nvidia-uvm\n235 nvidia-uvm-x\n\nBlock devices:\n  7 nvidia-loop\n"
)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A machine with the driver loaded, and the program."""
    package = Package(
        "nvidia-modprobe", "3:580.159.03-1.amzn2023", "rpm", "x86_64",
        find_row("packages", "nvidia-modprobe", kind="rpm", asked_by="test"),
    )  # fmt: skip
    stage(package.row, package.values, tmp_path)
    for folder in ("dev", "sys/module/nvidia", "sys/module/nvidia_uvm", "proc/driver/nvidia", "proc/sys/kernel"):
        (tmp_path / folder).mkdir(parents=True)
    (tmp_path / "proc/driver/nvidia/params").write_text(PARAMS.format(modify=1))
    (tmp_path / "proc/devices").write_text(DEVICES)
    (tmp_path / "proc/sys/kernel/modprobe").write_text("/sbin/modprobe\n")
    return tmp_path


def run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = ["chroot", str(root), "/usr/bin/nvidia-modprobe", *options]
    return subprocess.run(command, capture_output=True, text=True, timeout=30)


def nodes(root: Path) -> dict[str, tuple[int, int, int, int]]:
    """Path below /dev → major, minor, mode and group of each node."""
    rows = {}
    for path in sorted((root / "dev").iterdir()):
        state = path.lstat()
        if stat.S_ISCHR(state.st_mode):
            numbers = os.major(state.st_rdev), os.minor(state.st_rdev)
            rows[path.name] = (*numbers, state.st_mode & 0o7777, state.st_gid)
    return rows


def test_nodes_are_those_that_it_is_asked_for(root: Path) -> None:
    assert run(root).returncode == 0 and nodes(root) == {}
    assert run(root, "-c", "3", "-c", "255").returncode == 0
    expected = {"nvidia3": (195, 3, 0o660, 44), "nvidiactl": (195, 255, 0o660, 44)}
    assert nodes(root) == expected
    assert (root / "dev/char/195:3").readlink() == Path("../nvidia3")
    assert run(root, "-u", "--create-nvidia-device-file=0").returncode == 0
    assert nodes(root) == {**expected, "nvidia-uvm": (234, 0, 0o660, 44), "nvidia-uvm-tools": (234, 1, 0o660, 44)}


def test_with_u_the_minor_is_of_unified_memory(root: Path) -> None:
    """The original replaces a good /dev/nvidia-uvm by one with the given minor: `-c 3 -u` is no way to get nvidia3."""
    run(root, "-u", "-c", "0")
    assert run(root, "-c", "3", "-u").returncode == 0
    assert {name: row[:2] for name, row in nodes(root).items()} == {
        "nvidia-uvm": (234, 3),
        "nvidia-uvm-tools": (234, 4),
    }


def test_a_driver_that_keeps_its_nodes_gets_none(root: Path) -> None:
    (root / "proc/driver/nvidia/params").write_text(PARAMS.format(modify=0))
    assert run(root, "-c", "0").returncode == 0 and nodes(root) == {}


def test_a_module_that_cannot_be_loaded_is_a_failure(root: Path) -> None:
    (root / "sys/module/nvidia").rmdir()
    assert run(root, "-c", "0").returncode == 1 and nodes(root) == {}


def test_a_wrong_option_ends_as_the_original_does(root: Path) -> None:
    done = run(root, "-x")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Invalid commandline, please run `/usr/bin/nvidia-modprobe --help`" in done.stderr
    assert "version 580.159.03" in run(root, "--version").stdout
