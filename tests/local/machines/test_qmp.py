"""QEMU's control socket."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from gpu_ami.errors import MachineError
from gpu_ami.local.machines.qmp import Qmp, short_path


def test_a_socket_that_never_comes(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="did not open its control socket"):
        Qmp(tmp_path / "qmp.sock", lambda: False)


def test_sockets_may_lie_deep(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 40)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server, short_path(folder / "x.sock") as name:
        server.bind(name)
    assert (folder / "x.sock").is_socket()
