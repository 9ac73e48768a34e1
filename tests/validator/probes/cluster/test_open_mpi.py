"""Open MPI on several nodes: the one that a node has, the command of a job, what its ranks say."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from tests.validator.probes.cluster.test_nodes import line, member
from validator.probes.cluster import mpi_jobs, nodes
from validator.probes.cluster.mpi_jobs import OpenMpi
from validator.probes.cluster.nodes import Together


def two() -> list[nodes.Member]:
    members = [member("i-1", "10.0.0.4/20"), member("i-2", "10.0.0.5/20")]
    nodes.choose_addresses(members)
    for each in members:
        each.boot_id = f"boot of {each.node.name}"
    return members


def rows(**changes: Any) -> list[dict[str, Any]]:
    made = [
        {"rank": rank, "size": 2, "host": f"ip-{rank}", "boot_id": f"boot of i-{rank + 1}", "right": True}
        for rank in range(2)
    ]
    made[1] |= changes
    return made


def test_right_sums_of_every_rank_have_no_defect() -> None:
    text = "warning: x\n" + "".join(json.dumps(row) + "\n" for row in rows()) + "{broken\n"
    assert mpi_jobs.read_ranks(text) == rows()
    assert mpi_jobs.rank_defects(rows(), two(), 1) == []


@pytest.mark.parametrize(
    ("ranks", "defect"),
    [
        (rows(right=False), "rank 1 on ip-1: the sum is wrong"),
        (rows()[:1], "ranks: expected 0 to 1, got 0"),
        ([], "ranks: expected 0 to 1, got none"),
        (rows(size=1), "rank 1 saw 1 ranks"),
        (rows(boot_id="boot of i-1"), "i-2 (10.0.0.5): 0 ranks, expected 1"),
        (rows(rank=0), "ranks: expected 0 to 1, got 0, 0"),
    ],
)
def test_defects_of_ranks(ranks: list[dict[str, Any]], defect: str) -> None:
    assert defect in mpi_jobs.rank_defects(ranks, two(), 1)


@pytest.mark.parametrize(
    ("shown", "expected"),
    [
        (
            "/opt/amazon/openmpi/bin/mpirun\n/opt/amazon/openmpi/lib64/libmpi.so.40\nmpirun (Open MPI) 4.1.7\n",
            OpenMpi("/opt/amazon/openmpi/bin/mpirun", "4.1.7", "/opt/amazon/openmpi/lib64/libmpi.so.40"),
        ),
        (
            "/usr/bin/mpirun\n/lib/libmpi.so.40\nmpirun (Open MPI) 5.0.9a1\n",
            OpenMpi("/usr/bin/mpirun", "5.0.9a1", "/lib/libmpi.so.40"),
        ),
        ("", None),
    ],
)  # fmt: skip
def test_the_installation_of_a_node(shown: str, expected: OpenMpi | None) -> None:
    one = member("i-1")
    one.connection = line({"mpirun": (0, shown)})
    assert mpi_jobs.find_open_mpi(one) == expected


@pytest.mark.skipif(not Path("/usr/bin/mpirun").exists(), reason="no Open MPI here")
def test_an_ordinary_user_s_path_is_enough() -> None:
    """Debian's ldconfig is in /sbin, which a login of an ordinary user does not search."""
    done = subprocess.run(
        ["sh", "-c", mpi_jobs.FIND_MPI], capture_output=True, text=True, env={"PATH": "/usr/bin:/bin"}, check=True
    )
    one = member("i-1")
    one.connection = line({"mpirun": (0, done.stdout)})
    installed = mpi_jobs.find_open_mpi(one)
    assert installed and installed.mpirun == "/usr/bin/mpirun" and installed.library.endswith("/libmpi.so.40")


def test_command_of_a_job_over_tcp() -> None:
    together = Together([], two(), folder="/tmp/f")
    text = mpi_jobs.command(OpenMpi("/opt/m/bin/mpirun", "4.1.7", "l"), together, 8, ["python3", "a b"])
    assert "--host 10.0.0.4:8,10.0.0.5:8 -np 16 python3 'a b'" in text
    assert "OMPI_MCA_plm_rsh_agent='ssh -F /tmp/f/config'" in text and "PRTE_MCA_plm_ssh_agent='ssh" in text
    assert "OMPI_MCA_oob_tcp_if_include=10.0.0.0/20" in text and "OMPI_MCA_btl=tcp,self" in text
