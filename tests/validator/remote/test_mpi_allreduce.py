"""Ranks of this machine's own Open MPI, where it has one: the program runs as on the nodes."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import validator.remote

ALLREDUCE = Path(validator.remote.__file__).parent / "mpi_allreduce.py"
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
