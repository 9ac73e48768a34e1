"""Jobs of Open MPI on several nodes: the command of a job over TCP, what its ranks print, and the output of nccl-tests.

nccl-tests run with NCCL_DEBUG=INFO; their output and the counters of the network meanwhile are judged.
Lines and columns: NVIDIA/nccl-tests (src/common.cu), NCCL (transport.cc: `Channel … via NET/…`), aws-ofi-nccl
("NET/OFI Selected Provider is efa"); what a good run shows: aws-k8s-tester 9c7b987ab and deep-learning-containers'
testEFA; what a bad AMI shows: aws-k8s-tester#473 (`via NET/Socket/0`, 1.0 GB/s on p5.48xlarge). Read 2026-11-25.
"""

from __future__ import annotations

import json
import math
import re
import shlex
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from validator.probes.cluster.nodes import Floor, Member, Together

# `mpirun --tag-output` (Open MPI 4) puts it before each line, as the MPI operator of Kubernetes does.
_TAG = r"(?:\[\d+,\d+\]<std(?:out|err)>:)?"
# size, count, type, redop, root, then time, algbw, busbw, #wrong out of place and in place. all_gather has no redop.
_ROW = re.compile(
    rf"^{_TAG}\s*(?P<size>\d+)\s+\d+\s+\S+\s+\S+\s+-?\d+"
    r"\s+\S+\s+\S+\s+(?P<out_of_place>\S+)\s+(?P<wrong_out>\S+)\s+\S+\s+\S+\s+(?P<in_place>\S+)\s+(?P<wrong_in>\S+)\s*$"
)
# Before nccl-tests 2.13: no root, and the largest relative error in place of #wrong; what is out of bounds is counted.
_OLD_ROW = re.compile(
    rf"^{_TAG}\s*(?P<size>\d+)\s+\d+\s+[a-z]\w+(?:\s+[a-z]\w+)?\s+[\d.]+\s+\S+\s+\S+\s+(?P<error_out>\S+)"
    r"\s+[\d.]+\s+\S+\s+(?P<in_place>\S+)\s+(?P<error_in>\S+)\s*$"
)
_OUT_OF_BOUNDS = re.compile(rf"^{_TAG}# Out of bounds values : (\d+)", re.MULTILINE)
_DEVICE = re.compile(rf"^{_TAG}#\s+Rank\s+(?P<rank>\d+)\s.*\son\s+(?P<host>\S+)\s+device\s+\d+", re.MULTILINE)
_CHANNEL = re.compile(r"\[(?:send|receive)\] via (?P<transport>NET/\S+(?: Libfabric/\S+)?)")
_PROVIDER = re.compile(r"NET/OFI Selected [Pp]rovider is (?P<provider>[\w;-]+)")
_NETWORK = re.compile(r"NCCL INFO Using network (?P<network>[^\r\n]+?)\s*$", re.MULTILINE)
_MIB = 1 << 20
# A node sends 2·S·(N-1)/N bytes an iteration of a ring all_reduce of S bytes over N nodes; the rest is tolerance.
# Derived, not yet seen on hardware: `unverified`.
_SENT_SHARE = 0.9
_ENA_SHARE = 0.05


@dataclass(frozen=True)
class Row:
    """One size in bytes. busbw: GB/s in place. wrong_…: elements; None where nccl-tests did not compare them."""

    size: int
    busbw: float | None
    wrong_out_of_place: int | None
    wrong_in_place: int | None

    def defect(self, *, in_place: bool) -> str:
        """What is wrong with its results, or that they were not compared. in_place: those in place must be, too."""
        counts = [self.wrong_out_of_place, self.wrong_in_place]
        if None in (counts if in_place else counts[:1]):
            return f"{self.size} bytes: results were not compared (#wrong is no number)"
        wrong = sum(count for count in counts if count)
        return f"{self.size} bytes: {wrong} wrong elements" if wrong else ""


@dataclass(frozen=True)
class Output:
    """One run. hosts: of the ranks. channels: transport → how often; empty where NCCL printed none."""

    rows: tuple[Row, ...] = ()
    hosts: Mapping[int, str] = field(default_factory=dict)
    channels: Mapping[str, int] = field(default_factory=dict)
    providers: tuple[str, ...] = ()
    networks: tuple[str, ...] = ()

    @property
    def busbw_of_largest(self) -> float | None:
        """GB/s in place of the largest size; None where there is no number."""
        return max(self.rows, key=lambda row: row.size).busbw if self.rows else None


def read(log: str) -> Output:
    """What nccl-tests and NCCL printed."""
    matches = [match for match in map(_ROW.match, log.splitlines()) if match]
    rows = [
        Row(int(match["size"]), _number(match["in_place"]), _count(match["wrong_out"]), _count(match["wrong_in"]))
        for match in matches
    ]
    return Output(
        tuple(rows) or tuple(_old_rows(log)),
        {int(match["rank"]): match["host"] for match in _DEVICE.finditer(log)},
        Counter(match["transport"] for match in _CHANNEL.finditer(log)),
        tuple(dict.fromkeys(match["provider"] for match in _PROVIDER.finditer(log))),
        tuple(dict.fromkeys(match["network"] for match in _NETWORK.finditer(log))),
    )


def _old_rows(log: str) -> Iterator[Row]:
    outside = _OUT_OF_BOUNDS.search(log)
    wrong = int(outside[1]) if outside else None
    for match in filter(None, map(_OLD_ROW.match, log.splitlines())):
        counts = [None if _number(match[error]) is None else wrong for error in ("error_out", "error_in")]
        yield Row(int(match["size"]), _number(match["in_place"]), *counts)


def _number(text: str) -> float | None:
    """A finite number; None for `N/A`, `nan` and what else is none."""
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None


def _count(text: str) -> int | None:
    number = _number(text)
    return None if number is None else math.ceil(number)  # printed by %g


def result_defects(output: Output, ranks: int, nodes: int, *, in_place: bool = True) -> list[str]:
    """What is wrong with results and ranks: a size that was not compared is never a right one.

    in_place: whether this collective compares results in place; alltoall does not, and prints `N/A` (alltoall.cu).
    """
    defects = [] if output.rows else ["nccl-tests printed no results"]
    defects += [text for text in (row.defect(in_place=in_place) for row in output.rows) if text]
    if len(output.hosts) != ranks:
        defects.append(f"ranks: expected {ranks}, got {len(output.hosts)}")
    if len(set(output.hosts.values())) != nodes:
        shown = ", ".join(sorted(set(output.hosts.values()))) or "none"
        defects.append(f"nodes: expected {nodes}, got {shown}")
    return defects


def transport_defects(output: Output, *, gpu_direct: bool) -> list[str]:
    """Why the traffic between nodes did not go over EFA. gpu_direct: whether the type has GPUDirect RDMA."""
    defects = []
    if "efa" not in output.providers:
        defects.append(f"aws-ofi-nccl: expected provider efa, got {', '.join(output.providers) or 'none'}")
    between = output.channels
    if not between:
        defects.append("NCCL named no channel between nodes (NCCL_DEBUG=INFO)")
    other = {name: count for name, count in between.items() if "Libfabric" not in name}
    defects += [f"{count} channels via {name}, expected NET/…Libfabric" for name, count in other.items()]
    return defects + (without_gpu_direct(output) if gpu_direct else [])


def without_gpu_direct(output: Output) -> list[str]:
    """The channels over EFA of which NCCL does not say that they are GPUDirect RDMA."""
    without = {name: count for name, count in output.channels.items() if "Libfabric" in name and "GDRDMA" not in name}
    return [f"{count} channels via {name} without GDRDMA" for name, count in without.items()]


@dataclass(frozen=True)
class Traffic:
    """Bytes that one node sent during a run: by EFA adapter, and by all its ENA interfaces together."""

    efa: Mapping[str, int]
    ena: int


def traffic(before: Mapping[str, int], after: Mapping[str, int]) -> Traffic:
    """Differences of counters, by `efa NAME` and `ena NAME`. One that is missing afterwards has counted nothing."""
    sent = {name: after.get(name, count) - count for name, count in before.items()}
    efa = {name.removeprefix("efa "): count for name, count in sent.items() if name.startswith("efa ")}
    return Traffic(efa, sum(count for name, count in sent.items() if name.startswith("ena ")))


def traffic_defects(name: str, node: Traffic, sizes: Sequence[int], iterations: int, nodes: int) -> list[str]:
    """What a node's counters contradict. sizes: bytes of each all_reduce; iterations: of each, both ways together."""
    if not node.efa:
        return [f"{name}: no EFA adapter has a counter tx_bytes"]
    still = sorted(adapter for adapter, count in node.efa.items() if count <= 0)
    defects = [f"{name}: tx_bytes of {', '.join(still)} did not grow"] if still else []
    total = sum(node.efa.values())
    least = _SENT_SHARE * sum(2 * size * (nodes - 1) / nodes * iterations for size in sizes)
    if total < least:
        defects.append(f"{name}: EFA sent {total / _MIB:.0f} MiB, expected at least {least / _MIB:.0f} MiB")
    everything = total + node.ena
    if everything and node.ena / everything >= _ENA_SHARE:
        defects.append(f"{name}: {node.ena / everything:.0%} of the bytes went through ENA, expected below 5 %")
    return defects


def floor_defect(output: Output, floor: Floor) -> str:
    """Why a run is below a floor; "" where it is not. A run without the floor's size has no figure, and is below it."""
    row = next((row for row in output.rows if row.size == floor.size), None)
    shown = "none" if row is None or row.busbw is None else f"{row.busbw:g}"
    if row is not None and row.busbw is not None and row.busbw >= floor.gbps:
        return ""
    return f"all_reduce: expected {floor.text}, got {shown}"


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
FIND_MPI = """\
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
    lines = member.run(FIND_MPI).text.splitlines()
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
