"""The base image ahead of its use: with the standard library alone, in the home that is named, its end told plainly."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from gpu_ami.process import identify
from tests.waiting import until

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[3]
_MODULE = "localregion.images.prepare"
# Writes the tar that it is asked for (before sources.list lines), or does what FAKE says.
_MMDEBSTRAP = """#!/bin/sh
case "$FAKE" in
    fails) echo "E: no archive" >&2; exit 25 ;;
    waits) echo $$ >"$GPU_AMI_HOME/began"; exec sleep 60 ;;
esac
while [ "$1" != bookworm ]; do shift; done
tar -cf "$2" -T /dev/null
"""


@pytest.fixture
def environment(home: Path, tmp_path: Path) -> dict[str, str]:
    """mmdebstrap stands for itself; everything else is this machine's."""
    program = tmp_path / "bin" / "mmdebstrap"
    program.parent.mkdir()
    program.write_text(_MMDEBSTRAP)
    program.chmod(0o755)
    return os.environ | {"PATH": f"{program.parent}:{os.environ['PATH']}", "GPU_AMI_HOME": str(home)}


def started(environment: dict[str, str]) -> subprocess.Popen[str]:
    """The program in an interpreter without any installed package."""
    code = f"import runpy, sys; sys.path.insert(0, {str(ROOT)!r}); runpy.run_module({_MODULE!r}, run_name='__main__')"
    pipe = subprocess.PIPE
    return subprocess.Popen([sys.executable, "-IS", "-c", code], env=environment, stdout=pipe, stderr=pipe, text=True)


def test_image_is_made_without_any_installed_package_and_once(home: Path, environment: dict[str, str]) -> None:
    first = started(environment)
    _, told = first.communicate(timeout=60)
    assert first.returncode == 0, told
    assert "✓ base image: Debian 12 by mmdebstrap" in told and "✓ write the disk" in told
    assert sorted(path.suffix for path in (home / "base").iterdir()) == ["", ".raw", ".tar"]
    again = started(environment)
    assert again.communicate(timeout=60) == ("", "") and again.returncode == 0


def test_failure_says_the_command_and_its_error(home: Path, environment: dict[str, str]) -> None:
    failed = started(environment | {"FAKE": "fails"})
    _, told = failed.communicate(timeout=60)
    assert failed.returncode == 4
    assert "base image: " in told and "ended with 25" in told and "E: no archive" in told
    assert [path.name for path in (home / "base").iterdir()] == ["lock"]


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_interrupt_ends_what_it_started(home: Path, environment: dict[str, str], signum: int) -> None:
    waiting = started(environment | {"FAKE": "waits"})
    until(lambda: (home / "began").exists() and (home / "began").read_text().endswith("\n"))
    child = int((home / "began").read_text())
    waiting.send_signal(signum)
    _, told = waiting.communicate(timeout=30)
    assert waiting.returncode == 130
    assert "interrupted; everything it started was cleaned up" in told and "Traceback" not in told
    assert [path.name for path in (home / "base").iterdir()] == ["lock"]
    until(lambda: identify(child) is None)
