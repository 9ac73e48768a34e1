"""A real sshd on loopback, and what may stand in its place: a silent port, a slow banner, a way that breaks."""

from __future__ import annotations

import contextlib
import getpass
import json
import os
import shutil
import socket
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests import forked_pytest
from tests.onhost.conftest import fake_libcuda  # noqa: F401  (a fixture)
from validator.observe import Observe
from validator.results import CheckRecord, RunningCheck
from validator.transport.ssh import Target

ROOT = Path(__file__).resolve().parents[2]
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
        self.port = serve(self.relay)

    def relay(self, front: socket.socket) -> None:
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
        ends, self._ends = self._ends, []  # the client may connect again before the last of them is cut
        for end in ends:
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)


@pytest.fixture
def breakable(sshd: Sshd, serve: Callable[[Callable[[socket.socket], None]], int]) -> Breakable:
    return Breakable(sshd.port, serve)


@dataclass(frozen=True)
class Outcome:
    """What a run of pytest printed, and its checks.json."""

    text: str
    document: dict[str, Any]
    seconds: float

    def check(self, name: str) -> dict[str, Any]:
        found: dict[str, Any] = next(one for one in self.document["checks"] if one["id"].endswith(f"::{name}"))
        return found

    @property
    def verdicts(self) -> dict[str, str]:
        return {one["id"].rpartition("::")[2]: one["verdict"] for one in self.document["checks"]}


Run = Callable[..., Outcome]


@pytest.fixture
def run(sshd: Sshd, tmp_path: Path) -> Run:
    """`run(file or source, *options, port=…)`: pytest with our plugin, as a user starts it."""

    def start(source: Path | str, *options: str, port: int = sshd.port, host: str = "127.0.0.1") -> Outcome:
        file = source if isinstance(source, Path) else tmp_path / "test_given.py"
        if isinstance(source, str):
            file.write_text(source)
        results = tmp_path / "checks.json"
        root = file if file.is_dir() else file.parent
        command = [
            "-p", "validator.plugin", "-p", "no:cacheprovider", "-q", "-rA", "--tb=line",
            f"--ssh-identity-file={sshd.key}", f"--results={results}",
            f"--rootdir={root}", f"--hosts=ssh://{sshd.target().user}@{host}:{port}", *options, str(file),
        ]  # fmt: skip
        started = time.monotonic()
        done = forked_pytest.run(command, timeout=60)
        seconds = time.monotonic() - started
        assert results.exists(), done.stdout + done.stderr
        return Outcome(done.stdout, json.loads(results.read_text()), seconds)

    return start


@pytest.fixture
def no_other_plugins(monkeypatch: pytest.MonkeyPatch) -> None:
    """For `run`: others' plugins may take part in setups and reports, and the engine then leaves none out."""
    monkeypatch.setenv("PYTEST_DISABLE_PLUGIN_AUTOLOAD", "1")


def folder_of(tmp_path: Path, files: dict[str, str]) -> Path:
    """A user's folder of testinfra files; each directory in it is a package, so that names may come twice."""
    folder = tmp_path / "mine"
    for name, text in files.items():
        file = folder / name
        file.parent.mkdir(parents=True, exist_ok=True)
        (file.parent / "__init__.py").touch()
        file.write_text(text)
    return folder


LOOKS = "def test_looks(host):\n    assert host.run('true').rc == 0\n"


@pytest.fixture
def running() -> RunningCheck:
    """A check that runs; `running.record` holds what it has recorded."""
    return RunningCheck(CheckRecord("test_it", "", "T1", ""))


@pytest.fixture
def observe(running: RunningCheck) -> Observe:
    return Observe(running)
