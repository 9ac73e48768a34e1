"""Open MPI on several nodes: which one a node has, the command that starts a job over TCP, what the ranks say."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from validator.probes.cluster.nodes import Member, Together


@dataclass(frozen=True)
class OpenMpi:
    """An installation of Open MPI on a node. library: the path of its libmpi."""

    mpirun: str
    version: str
    library: str

    @property
    def major(self) -> int:
        return int(self.version.partition(".")[0] or 0)


# ldconfig is in no PATH of an ordinary user.
_FIND_MPI = """\
PATH=$PATH:/usr/sbin:/sbin
for mpirun in /opt/amazon/openmpi5/bin/mpirun /opt/amazon/openmpi/bin/mpirun "$(command -v mpirun 2>/dev/null)"; do
  [ -x "$mpirun" ] || continue
  prefix=${mpirun%/bin/mpirun}
  for library in "$prefix"/lib/libmpi.so.40 "$prefix"/lib64/libmpi.so.40 \\
      "$(ldconfig -p 2>/dev/null | sed -n 's/.*libmpi\\.so\\.40 .*=> //p' | head -n 1)"; do
    [ -e "$library" ] && break
  done
  [ -e "$library" ] || continue
  printf '%s\\n%s\\n' "$mpirun" "$library"
  "$mpirun" --version
  exit
done
"""


def find_open_mpi(member: Member) -> OpenMpi | None:
    """The first Open MPI of a node: AWS's (5, then 4), else the one on PATH. None: there is none."""
    lines = member.run(_FIND_MPI).text.splitlines()
    if len(lines) < 3:
        return None
    version = re.search(r"\(?(?:Open MPI|OpenRTE)\)? (\d[\w.]*)", " ".join(lines[2:]))
    return OpenMpi(lines[0], version[1] if version else "", lines[1])


def command(mpi: OpenMpi, together: Together, ranks_of_node: int, program: Sequence[str]) -> str:
    """The shell command that starts `program` on every node over TCP, its output line by line.

    Variables of both generations are set: OMPI_MCA_… (4) and PRTE_MCA_… (5; PRRTE starts its daemons).
    """
    networks = ",".join(dict.fromkeys(member.network for member in together.members))
    agent = together.ssh_command()
    environment = {
        "OMPI_MCA_plm_rsh_agent": agent,
        "OMPI_MCA_oob_tcp_if_include": networks,
        "OMPI_MCA_btl_tcp_if_include": networks,
        "OMPI_MCA_btl": "tcp,self",
        "OMPI_MCA_pml": "ob1",
        "OMPI_MCA_plm_rsh_no_tree_spawn": "1",
        "PRTE_MCA_plm_ssh_agent": agent,
        "PRTE_MCA_prte_if_include": networks,
        "PMIX_MCA_gds": "hash",
    }
    hosts = ",".join(f"{member.address}:{ranks_of_node}" for member in together.members)
    words = [mpi.mpirun, "--host", hosts, "-np", str(ranks_of_node * len(together.members)), *program]
    assigned = " ".join(f"{name}={shlex.quote(value)}" for name, value in environment.items())
    return f"cd {together.folder} && {assigned} {shlex.join(words)}"


def read_ranks(text: str) -> list[Mapping[str, Any]]:
    """The lines of onhost/mpi_allreduce.py in the output of mpirun."""
    rows = []
    for line in text.splitlines():
        if line.startswith("{"):
            try:
                rows.append(json.loads(line))
            except ValueError:
                continue
    return rows


def rank_defects(rows: Sequence[Mapping[str, Any]], members: Sequence[Member], ranks_of_node: int) -> list[str]:
    """What is wrong with the ranks' own lines: missing or wrong ones, and nodes that took no part."""
    expected = ranks_of_node * len(members)
    wrong = [
        f"rank {row.get('rank')} on {row.get('host')}: the sum is wrong" for row in rows if row.get("right") is not True
    ]
    ranks = sorted(int(row["rank"]) for row in rows if "rank" in row)
    if ranks != list(range(expected)):
        wrong.append(f"ranks: expected 0 to {expected - 1}, got {', '.join(map(str, ranks)) or 'none'}")
    wrong += [f"rank {row.get('rank')} saw {row.get('size')} ranks" for row in rows if row.get("size") != expected]
    took_part = [row.get("boot_id") for row in rows]
    wrong += [
        f"{member.name}: {took_part.count(member.boot_id)} ranks, expected {ranks_of_node}"
        for member in members
        if took_part.count(member.boot_id) != ranks_of_node
    ]
    return wrong
