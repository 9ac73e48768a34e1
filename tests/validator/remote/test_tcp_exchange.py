"""Connections on ports that the kernel chooses: real sockets on loopback."""

from __future__ import annotations

import socket
import subprocess
import sys
from pathlib import Path

import validator.remote

EXCHANGE = Path(validator.remote.__file__).parent / "tcp_exchange.py"


def send(port: int) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-IS", str(EXCHANGE), "send", "127.0.0.1", str(port), "5"]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


def test_what_is_sent_arrives() -> None:
    command = [sys.executable, "-IS", str(EXCHANGE), "listen", "127.0.0.1"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as listener:
        assert listener.stdout
        port = int(listener.stdout.readline())
        done = [send(port), send(port)]
        listener.kill()
    assert [(one.returncode, one.stdout) for one in done] == [(0, "1048576 bytes\n")] * 2


def test_nobody_listens() -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        done = send(free.getsockname()[1])
    assert (done.returncode, done.stdout) == (1, "Connection refused\n")


def test_another_answer_is_named() -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen(1)
        command = [sys.executable, "-IS", str(EXCHANGE), "send", "127.0.0.1", str(other.getsockname()[1]), "5"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as sender:
            connection, _ = other.accept()
            while connection.recv(1 << 16):
                pass
            connection.sendall(b"cut")
            connection.close()
            text, _ = sender.communicate(timeout=60)
    assert sender.returncode == 1 and text == "another digest came back: b'cut'\n"
