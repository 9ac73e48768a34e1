"""The programs that are sent to hosts: linted, sent without comments, and each runs in any POSIX shell."""

from __future__ import annotations

import os
import shlex
import subprocess
import time
from pathlib import Path

import pytest

import onhost
from validator import remote

PROGRAMS = sorted(remote.PROGRAMS.glob("*.sh"))
SHELLS = pytest.mark.parametrize("shell", [["dash"], ["bash", "--posix"]], ids="_".join)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_shellcheck_finds_nothing(program: Path) -> None:
    done = subprocess.run(["shellcheck", program], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout


@SHELLS
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda path: path.name)
def test_sent_program_is_complete(program: Path, shell: list[str]) -> None:
    sent = remote.text(program.stem)
    assert "\n#" not in sent and not sent.startswith("#") and len(sent) < program.stat().st_size
    subprocess.run([*shell, "-n"], input=sent, text=True, check=True, timeout=60)


def test_every_program_is_described() -> None:
    lines = (onhost.__doc__ or "").splitlines()
    described = {line.split()[0].rstrip("/") for line in lines if line and line[0].islower()}
    files = (path for path in remote.PROGRAMS.iterdir() if not path.name.startswith(("_", ".")))
    there = {path.stem for path in files if path.suffix != ".toml"}
    assert described == there


def test_arguments_are_quoted() -> None:
    text = remote.with_arguments("bug_report", "1", "two words; exit 3")
    first, _, rest = text.partition("\n")
    assert shlex.split(first) == ["set", "--", "1", "two words; exit 3"] and rest == remote.text("bug_report")


@SHELLS
def test_kill_marked_kills_marked_processes(shell: list[str]) -> None:
    mark = f"vtest{os.getpid()}"
    marked = subprocess.Popen(["sleep", "60"], env={**os.environ, "VALIDATOR_MARK": f"{mark}-1"})
    other = subprocess.Popen(["sleep", "60"], env={**os.environ, "VALIDATOR_MARK": f"{mark}0-1"})
    try:
        program = f"{remote.text('kill_marked')}validator_kill_marked '{mark}-.*'"
        subprocess.run([*shell, "-c", program], timeout=60)
        assert marked.wait(10) == -9 and other.poll() is None
    finally:
        for process in (marked, other):
            process.kill()
            process.wait()


@SHELLS
def test_run_while_open_gives_the_status_of_the_command(shell: list[str]) -> None:
    command = [*shell, "-c", remote.text("run_while_open"), "sh", "echo said; exit 7"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdin is not None
    assert process.stdout.read() == b"said\n" and process.wait(30) == 7
    process.stdin.close()


@SHELLS
def test_run_while_open_ends_with_its_input(shell: list[str]) -> None:
    command = [*shell, "-c", remote.text("run_while_open"), "sh", "exec sleep 60"]
    started = time.monotonic()
    done = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=30)
    assert done.returncode != 0 and time.monotonic() - started < 20
