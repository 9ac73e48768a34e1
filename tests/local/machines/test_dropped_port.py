"""Connections to a dropped port time out, and get through or are refused when it is given up."""

from __future__ import annotations

import socket

import pytest

from gpu_ami.local.machines.dropped_port import DroppedPort

ADDRESS = "127.99.7.7"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


def test_connections_time_out_and_are_not_refused() -> None:
    port = free_port()
    dropped = DroppedPort(ADDRESS, port)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            socket.create_connection((ADDRESS, port), timeout=0.3)
    dropped.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((ADDRESS, port), timeout=5)


def test_the_port_can_be_used_right_afterwards() -> None:
    port = free_port()
    DroppedPort(ADDRESS, port).close()
    with socket.create_server((ADDRESS, port)):
        socket.create_connection((ADDRESS, port), timeout=5).close()
    DroppedPort(ADDRESS, port).close()


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server((ADDRESS, 0)) as server, pytest.raises(OSError):
        DroppedPort(ADDRESS, server.getsockname()[1])
