"""Cost of a check: the validator, its batching shell without the engine (--serial), and `pytest --hosts=paramiko://`.

All run the same file, alternating, against a real sshd on loopback, through a proxy that adds the round-trip time. The
login user has the home directory of a new Debian user, so that a slow .bashrc is not measured. In addition to wall
time, the CPU time of the process and of sshd is measured, because the load of the machine affects it least. Prints
medians, one JSON line for each combination.

    python bench/bench_validator.py                     # 30 and 300 checks, 1 and 8 hosts, 0, 20 and 60 ms
    python bench/bench_validator.py --checks 30 --hosts 1 --rtt 20 --repeat 3
    python bench/bench_validator.py --checks 30 --hosts 64 256 --rtt 20 --repeat 1 --most 900
    python bench/bench_validator.py --img-proof /path/to/venv/bin/img-proof     # as root; pip install img-proof
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import getpass
import json
import math
import os
import resource
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
_SSHD = """\
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
PidFile none
AuthorizedKeysFile {folder}/key.pub
StrictModes no
UsePAM no
PermitRootLogin yes
MaxStartups 1000
MaxSessions 1000
SetEnv HOME={folder}/home
"""
# The mix of a usual suite: files, packages, users, commands, a content, an owner, kernel settings.
_CHECKS = """
import pytest

N = {count}
CASES = [(kind, number) for number in range(-(-N // 30)) for kind in (
    ["exists"] * 8 + ["package"] * 6 + ["user"] * 3 + ["run"] * 8
    + ["contains", "content", "owner", "sysctl", "sysctl"])]
PATHS = ["/etc/passwd", "/etc/group", "/etc/hostname", "/etc/hosts", "/etc/fstab", "/usr/bin/env", "/tmp", "/proc"]
PACKAGES = ["bash", "coreutils", "dpkg", "grep", "sed", "tar"]


@pytest.mark.parametrize(("kind", "number", "at"), [(k, n, at) for at, (k, n) in enumerate(CASES[:N])])
def test_it(host, kind, number, at):
    if kind == "exists":
        assert host.file(PATHS[at % 8]).exists
    elif kind == "package":
        assert host.package(PACKAGES[at % 6]).is_installed
    elif kind == "user":
        assert host.user(["root", "daemon", "bin"][at % 3]).exists
    elif kind == "run":
        assert host.run("echo %s", str(at)).rc == 0
    elif kind == "contains":
        assert host.file("/etc/passwd").contains("root")
    elif kind == "content":
        assert b"root" in host.file("/etc/passwd").content
    elif kind == "owner":
        file = host.file("/etc/passwd")
        assert (file.user, file.group, file.mode) == ("root", "root", 0o644)
    else:
        assert host.sysctl(["kernel.ostype", "kernel.pid_max"][at % 2])
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextlib.contextmanager
def sshd(folder: Path) -> Iterator[Sshd]:
    """An sshd of our own, as the user who runs this."""
    program = shutil.which("sshd", path=f"{os.environ['PATH']}:/usr/sbin")
    if program is None:
        raise SystemExit("sshd is missing: apt-get install openssh-server")
    for name in ("host_key", "key"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", folder / name], check=True)
    port = free_port()
    folder.chmod(0o755)
    (folder / "home").mkdir()
    for name in (".bashrc", ".profile"):
        shutil.copy(Path("/etc/skel") / name, folder / "home")
    (folder / "config").write_text(_SSHD.format(port=port, folder=folder))
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    process = subprocess.Popen([program, "-D", "-f", folder / "config"], stdin=subprocess.DEVNULL)
    try:
        while True:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
                break
            time.sleep(0.02)
        yield Sshd(port, process.pid, folder)
    finally:
        process.terminate()
        process.wait(10)


class DelayProxy(threading.Thread):
    """Passes bytes on `delay` seconds later, in each direction; as many ports as hosts."""

    def __init__(self, behind: int, delay: float, ports: int, address: str = "127.0.0.1", port: int = 0) -> None:
        super().__init__(daemon=True)
        self.behind, self.delay, self._where = behind, delay, (address, port)
        self.connections = 0
        self.ports: list[int] = []
        self._count = ports
        self._ready = threading.Event()
        self.start()
        self._ready.wait(10)

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        servers = [await asyncio.start_server(self._join, *self._where) for _ in range(self._count)]
        self.ports = [server.sockets[0].getsockname()[1] for server in servers]
        self._ready.set()
        await asyncio.gather(*(server.serve_forever() for server in servers))

    async def _join(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        back_reader, back_writer = await asyncio.open_connection("127.0.0.1", self.behind)
        for stream in (writer, back_writer):
            stream.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        await asyncio.gather(self._pump(reader, back_writer), self._pump(back_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        queue: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()
        sender = asyncio.create_task(self._send(queue, writer))
        with contextlib.suppress(OSError):
            while data := await reader.read(1 << 16):
                queue.put_nowait((time.monotonic() + self.delay, data))
        queue.put_nowait((time.monotonic() + self.delay, b""))
        await sender

    @staticmethod
    async def _send(queue: asyncio.Queue[tuple[float, bytes]], writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while True:
                due, data = await queue.get()
                await asyncio.sleep(max(0.0, due - time.monotonic()))
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            writer.close()


@dataclass(frozen=True)
class Spent:
    """What one whole process took, from start to exit: seconds on the clock, and of CPU, its own and its sshd's."""

    wall: float
    own_cpu: float
    sshd_cpu: float


class Sshd:
    """An sshd of our own, and what it has spent on sessions that have ended."""

    def __init__(self, port: int, pid: int, folder: Path) -> None:
        self.port, self.pid, self.folder = port, pid, folder

    @property
    def cpu(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")

    def settled_cpu(self) -> float:
        """The same once all sessions have ended."""
        children = Path(f"/proc/{self.pid}/task/{self.pid}/children")
        while children.read_text().strip():
            time.sleep(0.02)
        return self.cpu


def spent(command: list[str], server: Sshd, cwd: Path = ROOT, most: float | None = None, **environment: str) -> Spent:
    """Runs one whole process; SystemExit with its output where it fails. TimeoutExpired after `most` seconds."""
    before, sshd_before = resource.getrusage(resource.RUSAGE_CHILDREN), server.settled_cpu()
    started = time.monotonic()
    done = subprocess.run(
        command,
        cwd=cwd,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        stdin=subprocess.DEVNULL,
        check=False,
        timeout=most,
    )
    wall = time.monotonic() - started
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    if done.returncode != 0:
        raise SystemExit(done.stdout[-3000:] + done.stderr[-2000:])
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return Spent(wall, own, server.settled_cpu() - sshd_before)


def pytest(server: Sshd, file: Path, hosts: list[str], way: str, most: float | None) -> Spent:
    """One run of the checks: by the validator, by its shell alone, or by testinfra's own backend for paramiko."""
    folder = server.folder
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", str(file)]
    command += [f"--hosts={','.join(hosts)}", f"--ssh-identity-file={folder / 'key'}"]
    if way == "paramiko":
        command += ["-p", "testinfra.plugin"]
    else:
        command += ["-p", "validator.plugin", f"--results={folder / 'checks.json'}"]
        command += ["--serial"] if way == "serial" else []
    # Other plugins that are installed here would cost both ways the same, and say nothing of either.
    return spent(command, server, most=most, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1")


def img_proof(program: Path, server: Sshd, file: Path, user: str, address: str) -> Spent:
    """One run of the same file by img-proof, on a host that is there already."""
    folder = server.folder
    tests = folder / "img_proof"
    tests.mkdir(exist_ok=True)
    shutil.copy(file, tests / file.name)
    (folder / "img_proof.config").touch()
    command = [str(program), "test", "--no-cleanup", "--no-default-test-dirs", "--quiet", "--distro", "sles"]
    command += ["--ip-address", address, "--ssh-user", user, "--ssh-private-key-file", str(folder / "key")]
    command += [
        "--test-dirs",
        str(tests),
        "--results-dir",
        str(folder / "results"),
        "--config",
        str(folder / "img_proof.config"),
    ]
    return spent([*command, "--history-log", str(folder / "history"), "ssh", file.stem], server, folder)


def cost(folder: Path) -> dict[str, Any]:
    """What the last gathered run asked of each host: the most of any."""
    found = [json.loads(path.read_text())["facts"]["transport"] for path in folder.glob("checks*.json")]
    return {key: max(one[key] for one in found) for key in found[0]}


def measure(server: Sshd, given: argparse.Namespace, checks: int, hosts: int, rtt_ms: int) -> dict[str, Any]:
    """Medians of both ways, taking turns."""
    proxy = DelayProxy(server.port, rtt_ms / 2000, hosts)
    address = f"127.77.{checks % 250}.{rtt_ms + 1}"  # img-proof knows no port but 22: it gets addresses of its own
    if given.img_proof and hosts == 1:
        DelayProxy(server.port, rtt_ms / 2000, 1, address, 22)
    file = server.folder / f"test_{checks}.py"
    file.write_text(_CHECKS.format(count=checks))
    ways: dict[str, list[Spent]] = {"serial": [], "gathered": [], "paramiko": []}
    for _ in range(given.repeat):
        for name in ("serial", "gathered", "paramiko"):
            scheme = "paramiko" if name == "paramiko" else "ssh"
            if name == "gathered":  # `cost` reads these
                for old in server.folder.glob("checks*.json"):
                    old.unlink()
            names = [f"{scheme}://{given.user}@127.0.0.1:{one}" for one in proxy.ports]
            try:
                ways[name].append(pytest(server, file, names, name, given.most))
            except subprocess.TimeoutExpired:
                ways[name].append(Spent(math.inf, math.inf, math.inf))
        if given.img_proof and hosts == 1:
            ways.setdefault("img_proof", []).append(img_proof(given.img_proof, server, file, given.user, address))
    result: dict[str, Any] = {"checks": checks, "hosts": hosts, "rtt_ms": rtt_ms, "repeat": given.repeat}
    for name, runs in ways.items():
        for what in ("wall", "own_cpu", "sshd_cpu"):
            result[f"{name}_{what}_s"] = round(statistics.median(getattr(one, what) for one in runs), 2)
    for other in ("serial", "paramiko"):
        for what in ("wall", "own_cpu", "sshd_cpu"):
            ours, theirs = result[f"gathered_{what}_s"], result[f"{other}_{what}_s"]
            result[f"{other}_{what}_ratio"] = round(theirs / ours, 1) if ours else None
    return result | cost(server.folder)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=int, nargs="+", default=[30, 300], help="numbers of checks [30 300]")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 8], help="numbers of hosts [1 8]")
    parser.add_argument(
        "--rtt", type=int, nargs="+", default=[0, 20, 60], metavar="MS", help="round-trip times in ms [0 20 60]"
    )
    parser.add_argument("--repeat", type=int, default=5, help="runs, of which the median is printed [%(default)s]")
    parser.add_argument("--most", type=float, metavar="S", help="seconds of a run; one that takes longer is `Infinity`")
    parser.add_argument("--img-proof", type=Path, metavar="PROGRAM", help="also run img-proof, on one host (as root)")
    parser.add_argument("--user", default=getpass.getuser(), help="login user [the current user]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, sshd(Path(name)) as server:
        for hosts in given.hosts:
            for checks in given.checks:
                for rtt in given.rtt:
                    print(json.dumps(measure(server, given, checks, hosts, rtt)), flush=True)


if __name__ == "__main__":
    main()
