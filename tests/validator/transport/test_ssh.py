"""The door for SSH against a real sshd: what works, and each way in which it can fail, in time and with its name."""

from __future__ import annotations

import subprocess
import threading
import time
from pathlib import Path

import pytest

from tests.validator.conftest import Breakable, Sshd
from tests.waiting import until
from validator.transport import ssh
from validator.transport.budget import TOTAL_BYTES, TOTAL_SECONDS
from validator.transport.errors import BudgetSpent


def nothing_left(mark: str) -> bool:
    return subprocess.run(["pgrep", "-f", mark], stdout=subprocess.DEVNULL).returncode == 1


def test_run_returns_status_and_outputs(sshd: Sshd) -> None:
    with ssh.connect(sshd.target()) as connection:
        done = connection.run("cat; echo err >&2; exit 3", input=b"in\0put")
    assert (done.rc, done.stdout, done.stderr) == (3, b"in\0put", b"err\n")
    assert connection.stages.keys() == {"connect", "banner", "auth"}


def test_large_output_on_both_pipes(sshd: Sshd) -> None:
    with ssh.connect(sshd.target()) as connection:
        done = connection.run("head -c 3000000 /dev/zero >&2; head -c 3000000 /dev/zero")
    assert (len(done.stdout), len(done.stderr)) == (3_000_000, 3_000_000)


def test_files_are_transferred_completely(sshd: Sshd, tmp_path: Path) -> None:
    content = bytes(range(256)) * 2000
    with ssh.connect(sshd.target()) as connection:
        connection.put(content, str(tmp_path / "a b'c"), mode=0o640)
        assert connection.get(str(tmp_path / "a b'c")) == content
        with pytest.raises(FileNotFoundError, match="No such file"):
            connection.get(str(tmp_path / "none"))
    assert (tmp_path / "a b'c").stat().st_mode & 0o777 == 0o640


def test_stream_yields_lines_and_kills_the_command(sshd: Sshd) -> None:
    with ssh.connect(sshd.target()) as connection:
        lines = connection.stream("echo one; echo two; exec sleep 8151")
        assert [next(lines), next(lines)] == [b"one", b"two"]
        lines.close()
        until(lambda: nothing_left("sleep 815[1]"), 5)


def test_connect_by_url(sshd: Sshd) -> None:
    user = sshd.target().user
    with ssh.connect(f"ssh://{user}@127.0.0.1:{sshd.port}", key_file=sshd.key) as connection:
        assert connection.run("echo here").text == "here\n"
    with pytest.raises(ValueError, match="expected ssh://user@address:port"):
        ssh.parse_url("https://somewhere/")


def test_dropped_mid_command(sshd: Sshd, breakable: Breakable) -> None:
    with ssh.connect(sshd.target(port=breakable.port)) as connection:
        threading.Timer(0.3, breakable.cut).start()
        started = time.monotonic()
        with pytest.raises(ssh.ConnectionDropped, match="closed the connection"):
            connection.run("sleep 60", timeout=90)
        assert time.monotonic() - started < 30


def test_hung_command_is_killed_at_its_deadline(sshd: Sshd) -> None:
    with ssh.connect(sshd.target()) as connection:
        started = time.monotonic()
        with pytest.raises(ssh.CommandExpired, match=r"did not complete within 0\.5 s: echo begun; sleep 8152"):
            connection.run("echo begun; sleep 8152", timeout=0.5)
        assert time.monotonic() - started < 30
        assert connection.run("true").rc == 0
    assert nothing_left("sleep 815[2]")


def test_status_124_before_the_deadline_is_no_timeout(sshd: Sshd) -> None:
    with ssh.connect(sshd.target()) as connection:
        assert connection.run("exit 124", timeout=5).rc == 124


def test_a_command_that_writes_without_end_is_a_finding(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "OUTPUT_BYTES", 1 << 20)
    with ssh.connect(sshd.target()) as connection:
        for text in ("yes", "yes >&2"):
            with pytest.raises(BudgetSpent, match=f"a command wrote more than 1 MiB of output: {text}"):
                connection.run(text, timeout=60)
        assert connection.budget.bytes < TOTAL_BYTES - (1 << 20) and connection.budget.seconds < TOTAL_SECONDS


def test_a_streamed_line_without_an_end_comes_in_parts(sshd: Sshd, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ssh, "LINE_BYTES", 1 << 16)
    with ssh.connect(sshd.target()) as connection:
        parts = list(connection.stream("head -c 1000000 /dev/zero"))
    assert sum(map(len, parts)) == 1_000_000 and max(map(len, parts)) < 200_000
