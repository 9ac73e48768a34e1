"""Process 1 of a sandbox: settings, devices, the login user. Settings of /proc/sys as plain files."""

from __future__ import annotations

import fcntl
import os
import selectors
import signal
import socket
import threading
from pathlib import Path
from typing import cast

import pytest

from localregion.sandbox import sandbox_init


def test_the_last_file_names_the_default_user(tmp_path: Path) -> None:
    folder = tmp_path / "etc/cloud/cloud.cfg.d"
    folder.mkdir(parents=True)
    (tmp_path / "etc/cloud/cloud.cfg").write_text("system_info: {default_user: {name: first}}\n")
    (folder / "10-a.cfg").write_text("system_info: {default_user: {name: second}}\n")
    (folder / "20-b.cfg").write_text("cloud_init_modules: []\n")
    assert sandbox_init.default_user(tmp_path).name == "second"


def test_a_signal_ends_the_wait_for_connections(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ending a builder would otherwise take up to half a second more."""
    answers: list[object] = []

    class Patient(selectors.DefaultSelector):
        def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
            answers.append(found := super().select(60))
            return found

    monkeypatch.setattr(sandbox_init.selectors, "DefaultSelector", Patient)
    monkeypatch.setattr(sandbox_init, "collect_children", lambda: None)  # the children here are others'
    stopped = threading.Event()
    before = signal.signal(signal.SIGTERM, lambda *_: stopped.set())
    try:
        threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGTERM)).start()
        with socket.create_server(("127.0.0.1", 0)) as listener:
            sandbox_init.accept_ssh(cast(sandbox_init.SandboxRoot, None), listener, stopped)
    finally:
        signal.signal(signal.SIGTERM, before)
    assert answers and answers[-1], "the wait has timed out"
    assert signal.set_wakeup_fd(-1) == -1


def test_a_connection_is_served_however_many_files_are_open() -> None:
    """A shell's redirection takes numbers below 10 alone (dash): who connected while packages came, was cut off."""
    ours, theirs = socket.socketpair()
    with ours, theirs, socket.socket(fileno=fcntl.fcntl(theirs, fcntl.F_DUPFD_CLOEXEC, 20)) as high:
        theirs.close()
        sandbox_init.serve(["cat"], high)
        high.close()
        ours.settimeout(60)
        ours.sendall(b"hello")
        assert ours.recv(16) == b"hello"
        ours.shutdown(socket.SHUT_WR)
        assert ours.recv(16) == b""


def test_settings_are_copied_as_far_as_they_can_be_read(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "kernel/random").mkdir(parents=True)
    (source / "kernel/osrelease").write_text("6.1\n")
    (source / "kernel/random/uuid").write_text("x")
    (source / "kernel/gone").symlink_to("nowhere")
    (source / "top").write_bytes(b"\xe4\n")
    settings = sandbox_init.read_settings(str(source))
    assert settings == {"kernel/osrelease": "6.1\n", "top": "\xe4\n"}
    sandbox_init.write_settings(settings, str(tmp_path / "target"))
    copied = sorted(path.relative_to(tmp_path / "target").as_posix() for path in (tmp_path / "target").rglob("*"))
    assert copied == ["kernel", "kernel/osrelease", "top"]
    assert (tmp_path / "target/top").read_bytes() == b"\xe4\n"
