"""Relays: a program per connection, which joins its stdin (a socket) with a service."""

from __future__ import annotations

import socket
import subprocess
import threading
from pathlib import Path

import pytest

from gpu_ami.local.machines import relay


def serve(server: socket.socket) -> threading.Thread:
    """Answers one connection with what it was sent, twice, once the sender has finished."""

    def answer() -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as stream:
            connection.sendall(stream.read() * 2)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


def talk(program: Path, said: bytes) -> bytes:
    here, there = socket.socketpair()
    with here:
        process = subprocess.Popen([f"./{program.name}"], cwd=program.parent, stdin=there.fileno())
        there.close()
        here.settimeout(20)
        here.sendall(said)
        here.shutdown(socket.SHUT_WR)
        with here.makefile("rb") as stream:
            answer = stream.read()
        assert process.wait(20) == 0
    return answer


@pytest.mark.parametrize("size", [1, 300_000])
def test_a_tcp_relay_carries_both_directions_and_their_ends(tmp_path: Path, size: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = serve(server)
        relay.write_tcp_relay(tmp_path / "to-api", int(server.getsockname()[1]))
        assert talk(tmp_path / "to-api", b"x" * size) == b"xx" * size
        thread.join(20)


def test_a_unix_relay_finds_the_socket_in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind("metadata.sock")
        server.listen()
        serve(server)
        relay.write_unix_relay(tmp_path / "to-metadata", "metadata.sock")
        assert talk(tmp_path / "to-metadata", b"GET") == b"GETGET"
    assert (tmp_path / "to-metadata").stat().st_mode & 0o777 == 0o700
