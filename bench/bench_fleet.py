"""Cost of the validator with many hosts: one process runs the same checks on 1, 8, 64 and 256 hosts.

Each host is a port of one sshd on loopback, behind a proxy that adds the round-trip time (both from
`bench_validator.py`). The hosts use the CPUs of this machine, unlike real hosts, so their CPU time is reported
separately. Prints one JSON line for each number of hosts, with its ratios to the first number of the same run, and what
each additional host adds to the memory of the process; with --dead, one for each failure.

    python bench/bench_fleet.py                                  # 30 checks, 20 ms
    python bench/bench_fleet.py --hosts 1 64 --repeat 5
    python bench/bench_fleet.py --hosts 64 --dead                # one host refuses, sends nothing, or a command hangs
"""

from __future__ import annotations

import argparse
import contextlib
import getpass
import json
import os
import resource
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

from bench_validator import _CHECKS, ROOT, DelayProxy, Sshd, free_port, sshd

_MIB = 1 << 20
# A command that its host does not finish, on the host whose port is in the environment alone.
_HANGING = """

def test_hangs(host):
    port = host.backend.port
    assert host.run("sleep 20" if port == {port} else "true", timeout=5).rc == 0
"""


@dataclass(frozen=True)
class Cost:
    """One whole process, start to exit: seconds of wall time and CPU, its hosts' CPU, and its peaks."""

    wall_s: float
    own_cpu_s: float
    hosts_cpu_s: float
    rss_mib: float
    threads: int
    processes: int
    rc: int


@dataclass
class Peaks:
    """The most memory, threads and child processes that a process had."""

    rss_mib: float = 0.0
    threads: int = 0
    processes: int = 0

    def look(self, pid: int) -> None:
        with contextlib.suppress(OSError, KeyError):  # it has ended
            lines = Path(f"/proc/{pid}/status").read_text().splitlines()
            values = dict(line.split()[:2] for line in lines if line.startswith(("VmHWM:", "Threads:")))
            children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
            self.rss_mib = max(self.rss_mib, int(values["VmHWM:"]) / 1024)
            self.threads = max(self.threads, int(values["Threads:"]))
            self.processes = max(self.processes, len(children))


def run(server: Sshd, file: Path, hosts: list[str], *options: str) -> Cost:
    """One run of the checks on all hosts."""
    folder = server.folder
    for old in folder.glob("checks*.json*"):
        old.unlink()
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", f"--rootdir={folder}", str(file)]
    command += [f"--hosts={','.join(hosts)}", f"--ssh-identity-file={folder / 'key'}", "-p", "validator.plugin"]
    command += [f"--results={folder / 'checks.json'}", "--tb=no", *options]
    before, hosts_before = resource.getrusage(resource.RUSAGE_CHILDREN), server.settled_cpu()
    peaks, started = Peaks(), time.monotonic()
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(
            command,
            cwd=ROOT,
            env=os.environ | {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"},
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
        )
        while process.poll() is None:
            peaks.look(process.pid)
            time.sleep(0.05)
        wall = time.monotonic() - started
        output.seek(0)
        if process.returncode not in (0, 1):
            raise SystemExit(output.read().decode()[-3000:])
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    own = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    hosts_cpu = server.settled_cpu() - hosts_before
    return Cost(wall, own, hosts_cpu, peaks.rss_mib, peaks.threads, peaks.processes, process.returncode)


def verdicts(folder: Path) -> dict[str, int]:
    """How many checks of all hosts have which verdict."""
    counts: dict[str, int] = {}
    for path in folder.glob("checks*.json"):
        for check in json.loads(path.read_text())["checks"]:
            counts[check["verdict"]] = counts.get(check["verdict"], 0) + 1
    return counts


@contextlib.contextmanager
def silent_port(times: int = 64) -> Iterator[int]:
    """A port that accepts connections and never says a word."""
    with socket.create_server(("127.0.0.1", 0), backlog=times) as listener:
        threading.Thread(target=_accept, args=(listener,), daemon=True).start()
        yield listener.getsockname()[1]


def _accept(listener: socket.socket) -> None:
    kept = []
    with contextlib.suppress(OSError):
        while True:
            kept.append(listener.accept())


def measure(server: Sshd, file: Path, ports: list[int], user: str, repeat: int, *options: str) -> dict[str, Any]:
    """Medians of the runs."""
    hosts = [f"ssh://{user}@127.0.0.1:{port}" for port in ports]
    runs = [run(server, file, hosts, *options) for _ in range(repeat)]
    names = ("wall_s", "own_cpu_s", "hosts_cpu_s", "rss_mib", "threads", "processes")
    medians = {name: round(statistics.median(getattr(one, name) for one in runs), 2) for name in names}
    return medians | {"verdicts": verdicts(server.folder)}


def compared(hosts: int, result: dict[str, Any], least: int, first: dict[str, Any]) -> dict[str, float]:
    """How a number of hosts compares with the least of the same run."""
    more = max(1, hosts - least)
    return {
        "wall_ratio": round(result["wall_s"] / first["wall_s"], 1),
        "cpu_ratio": round(result["own_cpu_s"] / first["own_cpu_s"], 1),
        "mib_each_additional_host": round((result["rss_mib"] - first["rss_mib"]) / more, 2),
    }


def dead_hosts(server: Sshd, checks: int, proxy: DelayProxy, user: str, repeat: int) -> Iterator[dict[str, Any]]:
    """The same hosts with one of them dead in the middle, in three ways."""
    file = server.folder / f"test_{checks}.py"
    middle = len(proxy.ports) // 2
    limits = ("--connect-timeout=5",)
    with silent_port() as silent:
        for name, port in (("none", proxy.ports[middle]), ("refuses", free_port()), ("silent", silent)):
            ports = [*proxy.ports[:middle], port, *proxy.ports[middle + 1 :]]
            yield {"dead": name} | measure(server, file, ports, user, repeat, *limits)
    hanging = server.folder / "test_hanging.py"
    hanging.write_text(file.read_text() + _HANGING.format(port=proxy.ports[middle]))
    yield {"dead": "command hangs"} | measure(server, hanging, proxy.ports, user, repeat, *limits)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--checks", type=int, default=30, help="checks on each host [%(default)s]")
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 8, 64, 256], help="numbers of hosts [1 8 64 256]")
    parser.add_argument("--rtt", type=int, default=20, metavar="MS", help="round-trip time in ms [%(default)s]")
    parser.add_argument("--repeat", type=int, default=3, help="runs, of which the median is printed [%(default)s]")
    parser.add_argument("--dead", action="store_true", help="test three failures of one host in the middle")
    parser.add_argument("--user", default=getpass.getuser(), help="login user [the current user]")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name, sshd(Path(name)) as server:
        file = server.folder / f"test_{given.checks}.py"
        file.write_text(_CHECKS.format(count=given.checks))
        first: dict[str, Any] = {}
        for hosts in given.hosts:
            proxy = DelayProxy(server.port, given.rtt / 2000, hosts)
            if given.dead:
                for result in dead_hosts(server, given.checks, proxy, given.user, given.repeat):
                    print(json.dumps({"hosts": hosts} | result), flush=True)
            else:
                result = measure(server, file, proxy.ports, given.user, given.repeat)
                first = first or result
                ratios = compared(hosts, result, given.hosts[0], first)
                print(json.dumps({"hosts": hosts, "checks": given.checks} | result | ratios), flush=True)


if __name__ == "__main__":
    main()
