"""The checks of several machines on two real ones of namespaces: OpenSSH, ports and Open MPI as on a network.

Each node has a network, processes, /root, /tmp and a boot id of its own; a cable (veth) joins the two. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from validator import remote
from validator.checks import several_nodes as checks
from validator.probes.cluster import mpi_jobs
from validator.probes.cluster.nodes import Node, Together

SSHD, MPIRUN = Path("/usr/sbin/sshd"), Path("/usr/bin/mpirun")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        os.geteuid() != 0 or not (SSHD.exists() and MPIRUN.exists() and shutil.which("nsenter")),
        reason="needs root, openssh-server and openmpi-bin",
    ),
]
_CONFIG = """\
ListenAddress 0.0.0.0
HostKey {folder}/host_key
PermitRootLogin prohibit-password
UsePAM no
StrictModes no
PidFile none
SetEnv OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
"""
_START = """\
set -e
mount --make-rprivate /
mount --bind {folder}/boot_id /proc/sys/kernel/random/boot_id
mount --bind {folder}/root /root
mount --bind {folder}/tmp /tmp
ip link set lo up
until ip link show {cable} >/dev/null 2>&1; do sleep 0.05; done
ip addr add {address}/24 dev {cable}
ip link set {cable} up
exec {sshd} -D -e -f {folder}/sshd_config
"""
# Joins this program's standard streams, a socket, to the node's sshd.
_RELAY = """\
import os, socket, threading
there = socket.create_connection(("127.0.0.1", 22))
def back():
    while data := there.recv(65536):
        os.write(1, data)
    os._exit(0)
threading.Thread(target=back, daemon=True).start()
while data := os.read(0, 65536):
    there.sendall(data)
"""


@dataclass
class RealNode:
    node: Node
    process: subprocess.Popen[bytes]
    pid: int  # of its sshd, the first process of its namespace

    def die(self) -> None:
        """As a machine that loses power: every process ends at once."""
        os.kill(self.pid, signal.SIGKILL)
        self.process.wait(10)


def keygen(path: Path) -> None:
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", path], check=True, stdin=subprocess.DEVNULL)


def child_of(pid: int) -> int:
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, IndexError):
            return int(Path(f"/proc/{pid}/task/{pid}/children").read_text().split()[0])
        time.sleep(0.02)
    raise AssertionError("the node did not start")


def start(folder: Path, index: int, key: Path) -> RealNode:
    for name in ("root/.ssh", "tmp"):
        (folder / name).mkdir(parents=True)
    keygen(folder / "host_key")
    (folder / "boot_id").write_text(f"boot-of-node-{index}\n")
    shutil.copy(key.with_suffix(".pub"), folder / "root/.ssh/authorized_keys")
    (folder / "sshd_config").write_text(_CONFIG.format(folder=folder))
    (folder / "relay.py").write_text(_RELAY)
    cable = f"cable{index}"
    text = _START.format(folder=folder, cable=cable, address=f"10.99.0.{index}", sshd=SSHD)
    command = ["unshare", "--net", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc", "sh", "-c", text]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
    pid = child_of(process.pid)
    relay = f"nsenter --target {pid} --net {sys.executable} -IS {folder}/relay.py"
    node = Node(f"i-{index}", "ssh://root@node:22", key_file=str(key), proxy_command=relay)
    return RealNode(node, process, pid)


@pytest.fixture
def pair() -> Iterator[list[RealNode]]:
    Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder, contextlib.ExitStack() as stack:
        key = Path(folder) / "key"
        keygen(key)
        nodes = [start(Path(folder) / f"node{index}", index, key) for index in (1, 2)]
        for each in nodes:
            stack.callback(each.process.wait, 10)
            stack.callback(each.process.kill)
        subprocess.run(["ip", "link", "add", "cable1", "netns", str(nodes[0].pid), "type", "veth",
                        "peer", "name", "cable2", "netns", str(nodes[1].pid)], check=True)  # fmt: skip
        for each in nodes:
            wait_for_sshd(each, Path(folder))
        yield nodes


def wait_for_sshd(node: RealNode, folder: Path) -> None:
    deadline = time.monotonic() + 20
    probe = "import socket; socket.create_connection(('127.0.0.1', 22), 1)"
    command = ["nsenter", "--target", str(node.pid), "--net", sys.executable, "-IS", "-c", probe]
    while subprocess.run(command, capture_output=True, check=False).returncode:
        logs = [path.read_text() for path in folder.glob("node*/log")]
        assert time.monotonic() < deadline and node.process.poll() is None, logs
        time.sleep(0.1)


@pytest.fixture
def together(pair: list[RealNode]) -> Iterator[Together]:
    with Together([each.node for each in pair]) as members:
        members.enter()
        yield members


def test_two_nodes_work_together_and_keep_nothing(pair: list[RealNode], judge: Judge) -> None:
    with Together([each.node for each in pair]) as together:
        together.enter()
        assert [member.address for member in together.members] == ["10.99.0.1", "10.99.0.2"]
        for check in (
            checks.test_every_node_logs_in_to_every_other, checks.test_every_node_reaches_every_other_on_any_port,
        ):  # fmt: skip
            judged = judge(check, {}, together=together)
            assert (judged.verdict, judged.message) == ("PASS", "")
        mpi = mpi_jobs.find_open_mpi(together.members[0])
        judged = judge(checks.test_open_mpi_runs_over_all_nodes, {}, together=together, mpi=mpi)
        assert (judged.verdict, judged.message) == ("PASS", "")
        ranks: Any = judged.check.observed["ranks"]  # type: ignore[index]
        assert sorted(row["boot_id"] for row in ranks) == ["boot-of-node-1", "boot-of-node-2"]
    with Together([each.node for each in pair]) as again:
        again.enter()
        left = again.members[1].run("cat ~/.ssh/authorized_keys; ls /tmp").text
        assert left.count("gpu-ami-nodes") == 2 + 1, "this time's two keys and folder alone"


SLEEPS = "import sys, time\nopen('/tmp/started', 'w').close()\ntime.sleep(600)\n"


def test_a_node_that_dies_in_the_middle_is_named(
    pair: list[RealNode], together: Together, judge: Judge, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(remote, "source", lambda _: SLEEPS)
    monkeypatch.setattr(checks, "JOB_SECONDS", 60.0)
    mpi = mpi_jobs.find_open_mpi(together.members[0])

    def die() -> None:
        for _ in range(600):
            if together.members[1].run("test -e /tmp/started && echo yes").text:
                break
            time.sleep(0.1)
        pair[1].die()

    killer = threading.Thread(target=die)
    killer.start()
    judged = judge(checks.test_open_mpi_runs_over_all_nodes, {}, together=together, mpi=mpi)
    killer.join()
    assert judged.verdict == "FAIL" and judged.message.startswith("died meanwhile: i-2 (10.99.0.2)"), judged.message


def test_a_cut_cable_is_seen_from_both_ends(pair: list[RealNode], together: Together, judge: Judge) -> None:
    command = ["nsenter", "--target", str(pair[0].pid), "--net", "ip", "link", "set", "cable1", "down"]
    subprocess.run(command, check=True)
    judged = judge(checks.test_every_node_logs_in_to_every_other, {}, together=together)
    assert judged.verdict == "FAIL"
    assert "i-1 (10.99.0.1) to i-2" in judged.message and "i-2 (10.99.0.2) to i-1" in judged.message
