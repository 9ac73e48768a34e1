"""What starts a slow program is heard, and a stand-in of a test is none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests import slow
from validator import cloudwatch


@pytest.mark.parametrize(
    ("command", "name"),
    [
        (["gcc", "x.c"], "gcc"),
        ([Path("/usr/sbin/sshd"), "-D"], "sshd"),
        ([sys.executable, "-m", "hatchling", "build"], "hatchling"),
        ([sys.executable, "-m", "gpu_ami", "plan"], None),
        (["sh", "-c", "gcc"], None),
    ],
)
def test_programs_are_known_by_name(command: list[str | Path], name: str | None, tmp_path: Path) -> None:
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    found = slow.program(command, str(tmp_path))
    assert (found and found.name) == name


def test_a_program_is_heard_and_a_stand_in_is_not(tmp_path: Path) -> None:
    stand_ins, programs = tmp_path / "stand-ins", tmp_path / "programs"
    for folder in (stand_ins, programs):
        folder.mkdir()
        (folder / "packer").write_text("#!/bin/sh\n")
        (folder / "packer").chmod(0o755)
    with slow.watch(stand_ins) as started:
        subprocess.run([stand_ins / "packer"], check=True)
        subprocess.run(["packer"], check=True, env={"PATH": str(stand_ins)})
        assert started == []
        subprocess.run([programs / "packer"], check=True)
        subprocess.run(["packer"], check=True, env={"PATH": str(programs)})
    assert started == ["packer", "packer"]
    subprocess.run([programs / "packer"], check=True)
    assert len(started) == 2


def test_a_stand_in_that_is_not_asked_costs_seconds() -> None:
    """A renamed attribute had eight tests wait 150 s each for the real CloudWatch."""
    assert cloudwatch.RETRY_SECONDS <= 20.0


@pytest.mark.slow
def test_a_test_that_is_not_marked_fails(tmp_path: Path) -> None:
    """pytest in pytest, with this project's conftest."""
    source = Path(__file__).with_name("conftest.py")
    (tmp_path / "conftest.py").write_text(source.read_text())
    (tmp_path / "test_given.py").write_text(
        "import pytest, subprocess\n"
        "def start():\n    assert subprocess.run(['dpkg-deb', '--version']).returncode == 0\n"
        "def test_plain():\n    start()\n"
        "@pytest.mark.slow\ndef test_marked():\n    start()\n"
        "@pytest.fixture\ndef sshd():\n    start()\n"
        "def test_by_its_fixture(sshd):\n    pass\n"
    )
    options = [
        "-p",
        "no:cacheprovider",
        "-q",
        "-o",
        "markers=slow: x",
        f"--rootdir={tmp_path}",
        "-c",
        "/dev/null",
        str(tmp_path),
    ]
    command = [sys.executable, "-m", "pytest", *options]
    root = source.parents[1]
    done = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=120)
    assert "3 passed, 1 error" in done.stdout, done.stdout
    assert "starts dpkg-deb: mark it slow" in done.stdout
    done = subprocess.run([*command, "-m", "not slow"], cwd=root, capture_output=True, text=True, timeout=120)
    assert "1 passed, 2 deselected, 1 error" in done.stdout, done.stdout
