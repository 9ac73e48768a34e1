"""A real sshd on loopback, and what may stand in its place: a silent port, a slow banner, a way that breaks."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from validator.ssh import Target

_CONFIG = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/authorized_keys
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin yes
MaxStartups 100
"""


@dataclass(frozen=True)
class Sshd:
    """Where it listens, the key that it takes, and one that it does not."""

    port: int
    key: Path
    other_key: Path
    host_key: str

    def target(self, **others: object) -> Target:
        values: dict[str, object] = {"port": self.port, "user": getpass.getuser(), "key_file": self.key}
        return Target("127.0.0.1", **(values | others))  # type: ignore[arg-type]


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, stdin=subprocess.DEVNULL)


@pytest.fixture(scope="session")
def sshd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Sshd]:
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    assert program, "these tests need sshd: apt-get install openssh-server"
    folder = tmp_path_factory.mktemp("sshd")
    for name in ("host_key", "key", "other_key"):
        _keygen(folder / name)
    shutil.copy(folder / "key.pub", folder / "authorized_keys")
    port = free_port()
    (folder / "sshd_config").write_text(_CONFIG.format(port=port, folder=folder))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where root's sshd separates its privileges
    log = (folder / "log").open("w")
    command = [program, "-D", "-e", "-f", folder / "sshd_config"]
    process = subprocess.Popen(command, stderr=log, stdin=subprocess.DEVNULL)
    until = time.monotonic() + 10
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
            break
        time.sleep(0.02)
    host_key = " ".join((folder / "host_key.pub").read_text().split()[:2])
    yield Sshd(port, folder / "key", folder / "other_key", host_key)
    process.terminate()
    process.wait(10)
    log.close()


@pytest.fixture
def serve() -> Iterator[Callable[[Callable[[socket.socket], None]], int]]:
    """`serve(handle)`: a port on loopback whose every connection `handle` gets in a thread."""
    listeners: list[socket.socket] = []

    def start(handle: Callable[[socket.socket], None]) -> int:
        listener = socket.create_server(("127.0.0.1", 0))
        listeners.append(listener)

        def loop() -> None:
            with contextlib.suppress(OSError):
                while True:
                    threading.Thread(target=handle, args=(listener.accept()[0],), daemon=True).start()

        threading.Thread(target=loop, daemon=True).start()
        return int(listener.getsockname()[1])

    yield start
    for listener in listeners:
        listener.close()


class Breakable:
    """A way to a port that can be cut or frozen while it is in use. `connections` counts those that came."""

    def __init__(self, port: int, serve: Callable[[Callable[[socket.socket], None]], int]) -> None:
        self._behind = port
        self._ends: list[socket.socket] = []
        self.connections = 0
        self.frozen = False
        self.refuses = False
        self.port = serve(self._join)

    def _join(self, front: socket.socket) -> None:
        self.connections += 1
        if self.refuses:
            front.close()
            return
        back = socket.create_connection(("127.0.0.1", self._behind))
        self._ends += [front, back]
        for one, other in ((front, back), (back, front)):
            threading.Thread(target=self._pump, args=(one, other), daemon=True).start()

    def _pump(self, one: socket.socket, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(65536):
                while self.frozen:
                    time.sleep(0.01)
                other.sendall(data)
        for end in (one, other):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def cut(self) -> None:
        for end in self._ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        self._ends.clear()


@pytest.fixture
def breakable(sshd: Sshd, serve: Callable[[Callable[[socket.socket], None]], int]) -> Breakable:
    return Breakable(sshd.port, serve)
