"""Ranks of this machine's own Open MPI, where it has one: the program runs as on the nodes.

Connections on ports that the kernel chooses: real sockets on loopback.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from validator import remote

ALLREDUCE = remote.PROGRAMS / "mpi_allreduce.py"
LIBMPI = next(map(str, Path("/usr/lib").glob("*/libmpi.so.40")), "")


@pytest.mark.skipif(not (LIBMPI and shutil.which("mpirun")), reason="no Open MPI here")
def test_ranks_sum_over_the_real_open_mpi() -> None:
    command = ["mpirun", "--allow-run-as-root", "--oversubscribe", "-np", "3", sys.executable, "-IS", str(ALLREDUCE)]
    environment = {**os.environ, "OMPI_MCA_btl": "tcp,self", "OMPI_MCA_btl_tcp_if_include": "lo", "OMPI_MCA_pml": "ob1"}
    done = subprocess.run(
        [*command, LIBMPI, "--mib", "1"], capture_output=True, text=True, timeout=120, check=False, env=environment
    )
    rows = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert done.returncode == 0, done.stderr
    assert sorted(row["rank"] for row in rows) == [0, 1, 2] and {row["size"] for row in rows} == {3}
    assert all(row["right"] and row["bytes"] == 1 << 20 for row in rows)
    assert all(row["library"].startswith("Open MPI v") for row in rows)


def test_a_library_that_is_not_there() -> None:
    done = subprocess.run([sys.executable, "-IS", str(ALLREDUCE), "/no/libmpi.so"], capture_output=True, check=False)
    assert done.returncode == 2 and b"/no/libmpi.so" in done.stderr


EXCHANGE = remote.PROGRAMS / "tcp_exchange.py"


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
