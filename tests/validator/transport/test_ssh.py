"""The door for SSH against a real sshd: what works, and each way in which it can fail, in time and with its name."""

from __future__ import annotations

import socket
import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.validator.conftest import Breakable, Sshd, free_port
from validator.transport import ssh

Serve = Callable[[Callable[[socket.socket], None]], int]


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
        until = time.monotonic() + 5
        while not nothing_left("sleep 815[1]") and time.monotonic() < until:
            time.sleep(0.02)
        assert nothing_left("sleep 815[1]")


def test_connect_by_url(sshd: Sshd) -> None:
    user = sshd.target().user
    with ssh.connect(f"ssh://{user}@127.0.0.1:{sshd.port}", key_file=sshd.key) as connection:
        assert connection.run("echo here").text == "here\n"
    with pytest.raises(ValueError, match="expected ssh://user@address:port"):
        ssh.parse_url("https://somewhere/")


def test_refused(sshd: Sshd) -> None:
    with pytest.raises(ssh.HostRefused, match="refuses connections"):
        ssh.connect(sshd.target(port=free_port()))


def test_silent_host_raises_within_one_timeout(sshd: Sshd, serve: Serve) -> None:
    started = time.monotonic()
    with pytest.raises(ssh.HostSilent, match=r"sent no SSH banner within 0\.3 s"):
        ssh.connect(sshd.target(port=serve(lambda _: time.sleep(5)), banner_timeout=0.3))
    assert time.monotonic() - started < 1.5


def test_slow_banner_is_accepted(sshd: Sshd, serve: Serve) -> None:
    def late(front: socket.socket) -> None:
        time.sleep(0.5)
        Breakable(sshd.port, lambda join: 0)._join(front)

    port = serve(late)
    with ssh.connect(sshd.target(port=port, banner_timeout=5)) as connection:
        assert connection.stages["banner"] > 0.5
    with pytest.raises(ssh.HostSilent):
        ssh.connect(sshd.target(port=port, banner_timeout=0.1))


def test_dropped_before_it_is_set_up(sshd: Sshd, serve: Serve) -> None:
    with pytest.raises(ssh.ConnectionDropped, match="before it was set up"):
        ssh.connect(sshd.target(port=serve(lambda front: front.close())))


def test_dropped_mid_command(sshd: Sshd, breakable: Breakable) -> None:
    with ssh.connect(sshd.target(port=breakable.port)) as connection:
        threading.Timer(0.3, breakable.cut).start()
        started = time.monotonic()
        with pytest.raises(ssh.ConnectionDropped, match="closed the connection"):
            connection.run("sleep 20", timeout=30)
        assert time.monotonic() - started < 3


def test_hung_command_is_killed_at_its_deadline(sshd: Sshd) -> None:
    with ssh.connect(sshd.target()) as connection:
        started = time.monotonic()
        with pytest.raises(ssh.CommandExpired, match=r"did not complete within 0\.5 s: echo begun; sleep 8152"):
            connection.run("echo begun; sleep 8152", timeout=0.5)
        assert time.monotonic() - started < 2
        assert connection.run("true").rc == 0
    assert nothing_left("sleep 815[2]")


def test_status_124_before_the_deadline_is_no_timeout(sshd: Sshd) -> None:
    with ssh.connect(sshd.target()) as connection:
        assert connection.run("exit 124", timeout=5).rc == 124


def test_wrong_key(sshd: Sshd) -> None:
    with pytest.raises(ssh.AuthRefused, match="rejects the key"):
        ssh.connect(sshd.target(key_file=sshd.other_key))


def test_login_without_a_key_is_refused(sshd: Sshd) -> None:
    with pytest.raises(ssh.AuthRefused, match="rejects all offered keys"):
        ssh.connect(sshd.target(key_file=None))


def test_unreadable_key(sshd: Sshd, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("nonsense")
    with pytest.raises(ssh.KeyFileUnusable, match="cannot be used"):
        ssh.connect(sshd.target(key_file=tmp_path / "key"))


def test_host_key_is_recorded_once_and_then_required(sshd: Sshd, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    for _ in range(2):
        ssh.connect(sshd.target(known_hosts=known)).close()
    assert known.read_text() == f"[127.0.0.1]:{sshd.port} {sshd.host_key}\n"
    known.write_text(known.read_text().replace(sshd.host_key, (sshd.other_key.with_suffix(".pub")).read_text().strip()))
    with pytest.raises(ssh.HostKeyChanged, match=r"the host key of .* differs"):
        ssh.connect(sshd.target(known_hosts=known))


def test_pinned_and_strict_host_keys(sshd: Sshd, tmp_path: Path) -> None:
    ssh.connect(sshd.target(host_key=sshd.host_key)).close()
    with pytest.raises(ssh.HostKeyChanged, match="differs from the pinned one"):
        ssh.connect(sshd.target(host_key=sshd.other_key.with_suffix(".pub").read_text()))
    with pytest.raises(ssh.HostKeyChanged, match="is not in"):
        ssh.connect(sshd.target(host_key="strict", known_hosts=tmp_path / "none"))
