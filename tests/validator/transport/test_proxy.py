"""A login through a program, to a real sshd: what works, and what a program that fails is reported as."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.validator.conftest import Sshd
from tests.waiting import until
from validator.transport import ssh
from validator.transport.ssh import expand

# Stands in for ssh -W, the AWS CLI and other programs: connects to 127.0.0.1 whatever the host's name.
TUNNEL = """
import os, socket, sys, threading
peer = socket.create_connection(("127.0.0.1", int(sys.argv[2])))
print(os.environ.get("TUNNEL_TOKEN", ""), file=sys.stderr)
def out():
    while data := peer.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=out, daemon=True).start()
while data := os.read(0, 65536):
    peer.sendall(data)
"""


@pytest.fixture
def tunnel(tmp_path: Path) -> str:
    program = tmp_path / "tunnel-8152.py"
    program.write_text(TUNNEL)
    return f"{sys.executable} {program}"


def running() -> bool:
    return subprocess.run(["pgrep", "-f", "tunnel-815[2]"], stdout=subprocess.DEVNULL).returncode == 0


def test_commands_run_through_a_program_that_ends_with_the_connection(sshd: Sshd, tunnel: str) -> None:
    target = ssh.Target("i-0123", sshd.port, sshd.target().user, sshd.key, proxy_command=f"{tunnel} %h %p")
    with ssh.connect(target) as connection:
        assert connection.run("echo $((6*7))").text == "42\n" and running()
        done = connection.run("head -c 3000000 /dev/zero")
        assert len(done.stdout) == 3_000_000
    until(lambda: not running(), 5)


def test_a_program_that_fails_is_named_with_its_last_words(sshd: Sshd) -> None:
    command = "echo 'TargetNotConnected: i-1 is not connected' >&2; exit 255; : %h"
    target = ssh.Target("i-1", 22, "admin", sshd.key, proxy_command=f"sh -c {command!r}", banner_timeout=3)
    with pytest.raises(ssh.HostUnreachable, match=r"exited with status 255: TargetNotConnected") as caught:
        ssh.connect(target)
    assert "run it by hand" in str(caught.value)


def test_a_program_that_is_not_installed_is_named(sshd: Sshd) -> None:
    target = ssh.Target("i-1", 22, "admin", sshd.key, proxy_command="no-such-program %h %p", banner_timeout=3)
    with pytest.raises(ssh.HostUnreachable, match=r"`no-such-program i-1 22` exited with status 127"):
        ssh.connect(target)


def test_the_host_key_of_another_machine_is_refused_as_always(sshd: Sshd, tunnel: str) -> None:
    other = "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqMyRWr1wAJYt6OZjNRZqGjpbPFWYzBqkHRmSXLcSVp"
    target = ssh.Target("i-1", sshd.port, sshd.target().user, sshd.key, host_key=other, proxy_command=f"{tunnel} %h %p")
    with pytest.raises(ssh.HostKeyChanged):
        ssh.connect(target)


def test_tokens_are_those_of_openssh() -> None:
    assert expand("nc -X connect %h %p # %r 100%%", "h;x", 2222, "me") == "nc -X connect 'h;x' 2222 # me 100%"
