"""The way to a connection against a real sshd: each way in which it can fail, in time and with its name."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.validator.conftest import Breakable, Sshd, free_port
from validator.transport import ssh

Serve = Callable[[Callable[[socket.socket], None]], int]


def test_refused(sshd: Sshd) -> None:
    with pytest.raises(ssh.HostRefused, match="refuses connections"):
        ssh.connect(sshd.target(port=free_port()))


def test_silent_host_raises_within_one_timeout(sshd: Sshd, serve: Serve) -> None:
    started = time.monotonic()
    with pytest.raises(ssh.HostSilent, match=r"sent no SSH banner within 0\.3 s"):
        ssh.connect(sshd.target(port=serve(lambda _: time.sleep(60)), banner_timeout=0.3))
    assert time.monotonic() - started < 30


def test_slow_banner_is_accepted(sshd: Sshd, serve: Serve) -> None:
    def late(front: socket.socket) -> None:
        time.sleep(0.5)
        Breakable(sshd.port, lambda join: 0).relay(front)

    port = serve(late)
    with ssh.connect(sshd.target(port=port, banner_timeout=5)) as connection:
        assert connection.stages["banner"] > 0.5
    with pytest.raises(ssh.HostSilent):
        ssh.connect(sshd.target(port=port, banner_timeout=0.1))


def test_dropped_before_it_is_set_up(sshd: Sshd, serve: Serve) -> None:
    with pytest.raises(ssh.ConnectionDropped, match="before it was set up"):
        ssh.connect(sshd.target(port=serve(lambda front: front.close())))


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
