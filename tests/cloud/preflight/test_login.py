"""What a login needs; each mistake beside the others is in test_examination.py."""

from __future__ import annotations

import shutil
import socket
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import place_of
from gpu_ami.cloud.preflight import identity, network
from gpu_ami.cloud.preflight.findings import Level
from gpu_ami.cloud.preflight.network import ways_in
from localregion.machines.firewall import DroppedPort


def scope(**keys: Any) -> Any:
    return SimpleNamespace(place=place_of({"name": "aws", "region": "us-east-1", **keys}), plan=None)


def test_an_address_needs_nothing() -> None:
    assert list(ways_in(scope())) == []


def test_installed_programs_are_shown_with_their_paths(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(shutil, "which", lambda name: f"/opt/{name}")
    monkeypatch.setattr(identity, "role_allows", lambda *_: [])  # examined with the other rights of the role
    findings = list(ways_in(scope(ssh_interface="session_manager", instance_profile="p")))
    assert [(each.level, each.found) for each in findings] == [
        (Level.OK, "aws: /opt/aws"), (Level.OK, "session-manager-plugin: /opt/session-manager-plugin"),
    ]  # fmt: skip
    key = tmp_path / "key"
    key.touch()
    findings = list(ways_in(scope(jump_host="a@b.invalid", jump_key=str(key))))
    assert [each.level for each in findings] == [Level.OK, Level.WARNING]


@pytest.mark.parametrize(
    ("sent", "level", "found"),
    [
        (b"SSH-2.0-OpenSSH_9.2p1\r\n", Level.OK, "SSH-2.0-OpenSSH_9.2p1"),
        (b"HTTP/1.1 400 Bad Request\r\n", Level.ERROR, "is not an SSH server: it sent b'HTTP/1.1 400"),
        (b"", Level.ERROR, "is not an SSH server: it sent b''"),
        (None, Level.ERROR, "Connection refused"),
    ],
)
def test_the_jump_host_has_to_answer_as_an_ssh_server(sent: bytes | None, level: Level, found: str) -> None:
    server = socket.create_server(("127.0.0.1", 0))
    port = server.getsockname()[1]

    def serve() -> None:
        connection, _ = server.accept()
        connection.sendall(sent or b"")
        connection.close()

    if sent is None:
        server.close()
    else:
        threading.Thread(target=serve, daemon=True).start()
    finding = network.jump_host(f"admin@127.0.0.1:{port}")
    assert (finding.level, finding.subject) == (level, "jump_host")
    assert f"127.0.0.1 port {port}" in finding.found and found in finding.found
    server.close()


def test_a_jump_host_that_drops_connections_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(network, "JUMP_SECONDS", 0.3)
    with socket.socket() as probe:
        probe.bind(("127.99.3.3", 0))
        port = probe.getsockname()[1]
    dropped = DroppedPort("127.99.3.3", port)
    assert network.jump_host(f"admin@127.99.3.3:{port}").found == f"127.99.3.3 port {port}: does not answer"
    dropped.close()
