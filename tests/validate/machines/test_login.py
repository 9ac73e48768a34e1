"""The end of a boot: which answers it waits out, and what ends it with an error."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import CapacityError, MachineError
from gpu_ami.validate.machines import login
from gpu_ami.validate.machines.restarts import ImageAtFault, is_at_fault
from tests.validate.conftest import PANIC, World
from validator.transport.ssh import CommandExpired, ConnectionDropped, Finished


class Busy:
    """A machine that answers what the script says."""

    def __init__(self, *answers: str | Exception) -> None:
        self.answers = list(answers)

    def run(self, command: str, timeout: float) -> Finished:
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return Finished(0, answer.encode(), b"", 0.0)


def settle(*answers: str | Exception, seconds: float = 30.0) -> list[str]:
    marked: list[str] = []
    until = time.monotonic() + seconds
    login.settle(Busy(*answers), "i-1", (login.SYSTEMD,), until, threading.Event(), marked.append)  # type: ignore[arg-type]
    return marked


def test_slow_answer_is_no_end(world: World) -> None:
    slow = CommandExpired("systemctl is-system-running", 60)
    assert settle("starting", slow, "degraded") == ["systemd"]  # how it ended is for the checks to judge


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (("starting",), "i-1: systemd did not complete\n  $ systemctl is-system-running\n  starting"),
        ((CommandExpired("systemctl is-system-running", 60),), "did not complete within 60 s"),
        (
            (ConnectionDropped("it ended the connection"),),
            "i-1: the connection was lost during the boot\n  it ended the connection",
        ),
    ],
)
def test_boot_without_an_end_says_where_it_stopped(world: World, answers: Any, message: str) -> None:
    with pytest.raises(MachineError) as caught:
        settle(*answers, seconds=-1.0)
    assert message in str(caught.value)


def await_cloud_init(folder: Path) -> str:
    """Output of the command with `folder` as /run/cloud-init and a `cloud-init` that says what it was asked."""
    program = folder.parent / "bin" / "cloud-init"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "asked: $*"\n')
    program.chmod(0o755)
    command = login.CLOUD_INIT.script.replace("/run/cloud-init", str(folder))
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    return subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=True).stdout


def test_end_of_cloud_init_is_seen_without_its_program(tmp_path: Path) -> None:
    """Each `cloud-init status` takes seconds of an emulated processor, from the boot that is waited for."""
    folder = tmp_path / "run"
    folder.mkdir()
    threading.Timer(0.2, (folder / "result.json").touch).start()
    assert await_cloud_init(folder) == "status: done\n"


@pytest.mark.parametrize("state", ["absent", "disabled"])
def test_cloud_init_that_does_not_run_is_asked(tmp_path: Path, state: str) -> None:
    folder = tmp_path / "run"
    if state == "disabled":
        folder.mkdir()
        (folder / "disabled").touch()
    assert await_cloud_init(folder) == "asked: status\n"


def test_panic_that_only_the_console_tail_shows_is_the_images(world: World) -> None:
    error = MachineError("i-1: SSH login failed", details=[f"| {PANIC}"])
    assert is_at_fault(error) and is_at_fault(ImageAtFault("x")) and not is_at_fault(CapacityError("none"))
