"""The process door: deadlines, last lines, nothing left running."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami import process
from gpu_ami.errors import BuildError, CloudError, MissingTool


def gone(pid: int, seconds: float = 5) -> bool:
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if process.identify(pid) is None:
            return True
        time.sleep(0.02)
    return False


def test_output_status_and_closed_stdin() -> None:
    done = process.run(["sh", "-c", "cat; echo out; echo err >&2"], timeout=10)
    assert (done.returncode, done.stdout, done.stderr) == (0, "out\n", "err\n")


def test_failure_shows_the_command_and_its_last_lines() -> None:
    with pytest.raises(BuildError) as caught:
        process.run(["sh", "-c", "seq 1 50; exit 7"], timeout=10, error=BuildError)
    assert caught.value.message == "sh ended with 7"
    assert caught.value.details[0] == "$ sh -c 'seq 1 50; exit 7'"
    assert caught.value.details[-1] == "50" and "30" not in caught.value.details


def test_lines_come_as_they_are_printed() -> None:
    seen: list[str] = []
    process.run(["sh", "-c", "echo one; echo two >&2"], timeout=10, on_line=seen.append)
    assert sorted(seen) == ["one", "two"]


def test_deadline_ends_the_whole_group(tmp_path: Path) -> None:
    script = f"sleep 60 & echo $! > {tmp_path}/child; wait"
    with pytest.raises(CloudError, match="did not complete within"):
        process.run(["sh", "-c", script], timeout=0.5, grace=0.5)
    assert gone(int((tmp_path / "child").read_text()))


def test_deadline_kills_what_ignores_the_signal() -> None:
    with pytest.raises(CloudError, match="did not complete within"):
        process.run(["sh", "-c", "trap '' TERM; echo ready; sleep 60 & wait; sleep 60"], timeout=0.3, grace=0.3)


def test_a_deadline_ends_what_outlived_the_leader_of_the_group(tmp_path: Path) -> None:
    """Packer's first process can end before its plugins do."""
    script = f"sh -c 'trap \"\" TERM; echo $$ > {tmp_path}/child; sleep 60; sleep 60' & sleep 0.2; exec sleep 60"
    with pytest.raises(CloudError, match="did not complete within"):
        process.run(["sh", "-c", script], timeout=0.5, grace=5)
    assert gone(int((tmp_path / "child").read_text()))


def test_a_second_interrupt_kills_and_says_so(tmp_path: Path) -> None:
    """Somebody who cannot wait presses Ctrl-C twice: the command is gone then, and its caller knows how it ended."""
    code = """
from gpu_ami import process
import signal
script = "trap '' INT; echo $$; while :; do sleep 1; done"
run = dict(timeout=60, stop_with=signal.SIGINT, grace=60, on_kill=lambda: print("killed"))
process.run(["sh", "-c", script], on_line=lambda line: print(line, flush=True), **run)
"""
    driver = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    assert driver.stdout is not None
    child = int(driver.stdout.readline())
    for _ in range(2):
        driver.send_signal(signal.SIGINT)
        time.sleep(0.5)
    out, err = driver.communicate(timeout=20)
    assert out == "killed\n" and "KeyboardInterrupt" in err and driver.returncode != 0
    assert gone(child)


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
def test_two_signals_at_once_are_one(signum: signal.Signals, tmp_path: Path) -> None:
    """`timeout` signals the program and its group: what the program runs is told once, and may clean up."""
    code = """
import signal
from gpu_ami import process
from gpu_ami.errors import end_as_by_ctrl_c
end_as_by_ctrl_c()
script = "trap 'sleep 1; echo cleaned; exit' INT; echo $$; while :; do sleep 0.1; done"
run = dict(timeout=60, stop_with=signal.SIGINT, grace=20, on_kill=lambda: print("killed"))
process.run(["sh", "-c", f"exec >>{FILE}; {script}"], **run)
"""
    file = tmp_path / "said"
    driver = subprocess.Popen(
        [sys.executable, "-c", f"FILE = {str(file)!r}\n{code}"], stderr=subprocess.PIPE, text=True
    )
    while not file.exists() or not file.read_text():
        time.sleep(0.02)
    time.sleep(0.3)  # the driver waits for it by now
    for _ in range(2):
        driver.send_signal(signum)
    _, err = driver.communicate(timeout=20)
    assert "KeyboardInterrupt" in err and driver.returncode != 0
    child, *said = file.read_text().split()
    assert said == ["cleaned"] and gone(int(child))


def test_missing_program_is_named() -> None:
    with pytest.raises(MissingTool, match="no-such-program is not installed"):
        process.run(["no-such-program"], timeout=1)
    with pytest.raises(MissingTool) as caught:
        process.find_tool("no-such-program", package="some-package")
    assert "apt-get install some-package" in caught.value.hint


def test_stop_all_ends_what_another_thread_waits_for() -> None:
    """How it ended says nothing: gpgv that was ended has found no signature, for one."""
    raised: list[str] = []

    def wait() -> None:
        try:
            process.run(["sleep", "60"], timeout=60, check=False)
        except CloudError as error:
            raised.append(error.message)

    thread = threading.Thread(target=wait)
    thread.start()
    while not process.running_processes:
        time.sleep(0.01)
    process.stop_all()
    thread.join(10)
    assert raised == ["sleep was ended: the run was interrupted"]


def test_ctrl_c_ends_the_jobs_of_a_pool() -> None:
    begun: list[int] = []

    def job(number: int) -> None:
        begun.append(number)
        process.run(["sleep", "60"], timeout=60)

    started = time.monotonic()
    with pytest.raises(KeyboardInterrupt), process.job_pool(1, "job") as submit:
        jobs = [submit(job, number) for number in range(3)]
        while not process.running_processes:
            time.sleep(0.01)
        raise KeyboardInterrupt
    assert begun == [0] and time.monotonic() - started < 30
    assert isinstance(jobs[0].exception(), CloudError) and jobs[1].cancelled() and jobs[2].cancelled()


def test_an_error_cancels_the_jobs_of_a_pool_that_have_not_begun() -> None:
    ended: list[int] = []

    def job(number: int) -> None:
        process.run(["sh", "-c", f"sleep 0.3; exit {number}"], timeout=60)
        ended.append(number)

    with pytest.raises(CloudError, match="sh ended with 1"), process.job_pool(2, "job") as submit:
        jobs = [submit(job, number) for number in (1, 0, 0, 0, 0, 0)]
        jobs[0].result()
    assert 1 <= len(ended) < 5 and jobs[-1].cancelled()  # what had begun came to its end


def test_a_child_does_not_outlive_a_killed_driver(tmp_path: Path) -> None:
    code = "from gpu_ami import process; process.run(['sh', '-c', 'echo $$ > %s/child; exec sleep 60'], timeout=60)"
    driver = subprocess.Popen([sys.executable, "-c", code % tmp_path])
    child = tmp_path / "child"
    while not child.exists() or not child.read_text().strip():
        time.sleep(0.02)
    os.kill(driver.pid, signal.SIGKILL)
    driver.wait()
    assert gone(int(child.read_text()))


def test_environment_is_the_same_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LANG", "de_DE.UTF-8")
    env = process.clean_environment({"X": "1"})
    assert env["LC_ALL"] == "C.UTF-8" and env["X"] == "1" and "LANG" not in env


def test_a_process_is_itself_and_no_other() -> None:
    me = process.identify(os.getpid())
    assert me is not None and me.alive()
    assert not replace(me, started="another boot/1").alive()
    child = subprocess.Popen(["sleep", "60"])
    identity = process.identify(child.pid)
    assert identity is not None
    assert identity.alive()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and nobody has asked for its status: a zombie
    assert process.identify(child.pid) is None
    assert not identity.alive()
    child.wait()
    assert not identity.alive()


@pytest.mark.parametrize("data", [None, {}, {"pid": "1", "started": "x"}, []])
def test_an_identity_needs_both_halves(data: object) -> None:
    assert process.ProcessIdentity.from_json(data) is None


@pytest.mark.parametrize("first", [signal.SIGTERM, signal.SIGKILL])
def test_end_sends_the_first_signal_and_nothing_to_what_has_ended(first: int) -> None:
    child = subprocess.Popen(["sleep", "60"])
    identity = process.identify(child.pid)
    assert identity is not None
    assert process.end(identity, first=first) is True
    assert child.wait(10) == -first
    assert process.end(identity) is True and not identity.alive()
