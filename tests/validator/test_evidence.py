"""What is kept of a host: the vendor's bug report where a check has failed, little after a restart, all bounded."""

from __future__ import annotations

import gzip
import subprocess
from pathlib import Path
from typing import Any

import pytest
import testinfra.host
from testinfra.backend import base

from validator import evidence
from validator.results import Check, Results


class Recorder(base.BaseBackend):  # type: ignore[misc]
    """A host that has a bug report, and says the command's first word to everything else."""

    NAME = "recorder"

    def __init__(self, script: tuple[int, bytes, bytes]) -> None:
        super().__init__("recorder")
        self.script = script
        self.asked: list[str] = []

    def run(self, command: str, *_: Any, **__: Any) -> base.CommandResult:
        self.asked.append(command)
        answer = self.script if "nvidia-bug-report.sh" in command else (0, command.split()[0].encode(), b"")
        return self.result(answer[0], command.encode(), answer[1], answer[2])


def keep(folder: Path, verdict: str, script: tuple[int, bytes, bytes], restarted: bool = False) -> Recorder:
    host = testinfra.host.Host(Recorder(script))
    found = Results("host", {"a": Check("boot::test_a", "boot", "T1", "", verdict)})
    evidence.finish(host, found, folder, restarted=restarted)
    backend: Recorder = host.backend
    return backend


def test_bug_report_of_a_failure(tmp_path: Path) -> None:
    asked = keep(tmp_path, "FAIL", (0, b"\x1f\x8breport", b"")).asked
    assert (tmp_path / evidence.BUG_REPORT).read_bytes() == b"\x1f\x8breport"
    assert not (tmp_path / f"{evidence.BUG_REPORT}.txt").exists()
    assert len(asked) > len(evidence.COMMANDS)


@pytest.mark.parametrize("verdict", ["PASS", "UNPROVEN", "FLAKY"])
def test_no_bug_report_without_a_failure(tmp_path: Path, verdict: str) -> None:
    asked = keep(tmp_path, verdict, (0, b"report", b"")).asked
    assert not any("nvidia-bug-report" in command for command in asked)
    assert not (tmp_path / evidence.BUG_REPORT).exists()


def test_host_without_the_script_leaves_no_file(tmp_path: Path) -> None:
    keep(tmp_path, "FAIL", (127, b"", b""))
    assert not list(tmp_path.glob(f"{evidence.BUG_REPORT}*"))


def test_script_that_hangs_says_so_beside_it(tmp_path: Path) -> None:
    keep(tmp_path, "FAIL", (124, b"half", b"nvidia-bug-report.sh will now collect\n"))
    assert (tmp_path / evidence.BUG_REPORT).read_bytes() == b"half"
    assert b"[ended with 124]" in (tmp_path / f"{evidence.BUG_REPORT}.txt").read_bytes()


def test_after_a_restart_only_what_is_of_that_boot(tmp_path: Path) -> None:
    keep(tmp_path, "PASS", (127, b"", b""), restarted=True)
    assert {path.name for path in tmp_path.iterdir()} == evidence.OF_EACH_BOOT
    assert evidence.COMMANDS.keys() > evidence.OF_EACH_BOOT and evidence.COMMANDS.keys() > evidence.OF_FILES


def test_failure_after_a_restart_is_kept_whole(tmp_path: Path) -> None:
    keep(tmp_path, "FAIL", (127, b"", b""), restarted=True)
    assert {path.name for path in tmp_path.iterdir()} == evidence.COMMANDS.keys()


@pytest.mark.parametrize(
    ("script", "rc", "size"),
    [
        ('for last; do :; done; head -c 100 /dev/zero > "$last"; gzip "$last"', 0, 100),
        ('for last; do :; done; head -c 40000000 /dev/urandom > "$last"; echo done', 0, evidence.BUG_REPORT_BYTES),
        ("echo no driver; exit 3", 3, 0),
    ],
)
def test_the_command_itself(tmp_path: Path, script: str, rc: int, size: int) -> None:
    program = tmp_path / "nvidia-bug-report.sh"
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    done = subprocess.run(["sh", "-c", evidence._BUG_REPORT], env=env, capture_output=True, timeout=60)
    assert done.returncode == rc
    content = gzip.decompress(done.stdout) if done.stdout[:2] == b"\x1f\x8b" and size == 100 else done.stdout
    assert len(content) == size
    assert [path.name for path in tmp_path.iterdir()] == ["nvidia-bug-report.sh"]  # nothing is left on the host


def test_the_command_without_the_script(tmp_path: Path) -> None:
    done = subprocess.run(["/bin/sh", "-c", evidence._BUG_REPORT], env={"PATH": str(tmp_path)}, capture_output=True)
    assert done.returncode == 127 and done.stdout == b""
