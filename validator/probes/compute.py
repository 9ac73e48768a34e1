"""What the compute probe (onhost/compute_probe.py) says of a machine's GPUs. `probe` alone does input or output."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from validator import remote

SCHEMA = "gpu-ami/compute/1"
MIB = 256  # what each GPU computes on, where that much is free
SECONDS = 150.0
_ANSWER_SECONDS = 30.0  # to start, and to tell after the limit
_MIG = re.compile(r"\(UUID: (MIG-[0-9A-Fa-f/-]+)\)")


class Unanswered(Exception):
    """The probe printed no result; the message says what it printed."""


@dataclass(frozen=True)
class Copy:
    """Copies of one GPU to another. access: whether they were from GPU to GPU; gbps: GB/s of the faster one of two."""

    to: int
    error: str = ""
    wrong: str = ""
    access: bool = False
    gbps: float = 0.0


@dataclass(frozen=True)
class GpuResult:
    """One GPU or MIG device (`mig`: its own UUID), as CUDA describes it, and its results.

    Memory in MiB, bandwidths in GB/s.

    error: a call that failed; wrong: the first result that is not as computed on the host, of kernel or patterns.
    """

    index: int
    name: str = ""
    uuid: str = ""
    mig: str = ""
    capability: str = ""
    memory_mib: int = 0
    free_mib: int = 0
    computed_mib: int = 0
    pattern_mib: int = 0
    h2d_gbps: float = 0.0
    d2h_gbps: float = 0.0
    error: str = ""
    wrong: str = ""
    copies: tuple[Copy, ...] = ()

    @property
    def right(self) -> bool:
        return not self.error and not self.wrong

    def text(self) -> str:
        """For the report."""
        bandwidths = f"to it {self.h2d_gbps:g} GB/s, from it {self.d2h_gbps:g} GB/s"
        return f"GPU {self.index}: {self.computed_mib} MiB computed, {self.pattern_mib} MiB of patterns, {bandwidths}"


@dataclass(frozen=True)
class Compute:
    """The result of a machine.

    error: why CUDA does not start; unfinished: why the work did not end, with its last step. count: GPUs that CUDA
    shows; replica: what a simulated library says of itself.
    """

    count: int = 0
    error: str = ""
    unfinished: str = ""
    replica: str = ""
    gpus: tuple[GpuResult, ...] = field(default=())

    @property
    def library(self) -> str:
        """Whose results these are, for the report."""
        return (
            f"computed by a simulated library ({self.replica})" if self.replica else "computed by the driver's libcuda"
        )


def probe(host: Any) -> Compute:
    """Runs the probe; MIG devices are those that nvidia-smi lists. Unanswered: it printed no result."""
    listed = host.run("nvidia-smi -L", pure=True)
    migs = _MIG.findall(listed.stdout) if listed.rc == 0 else []
    words = ["--mib", str(MIB), "--seconds", f"{SECONDS:g}", *(["--mig", ",".join(migs)] if migs else [])]
    done = host.run(remote.python("compute_probe", *words), timeout=SECONDS + _ANSWER_SECONDS, pure=True)
    return read(done.stdout, f"exit status {done.rc}: {(done.stderr or done.stdout).strip()[-300:] or 'no output'}")


def read(printed: str, otherwise: str = "") -> Compute:
    """What the probe has printed. Unanswered, with `otherwise`: no result."""
    try:
        rows = [json.loads(line) for line in printed.splitlines() if line.strip()]
        machine, gpus = rows[0], rows[1:]
        if machine["schema"] != SCHEMA or machine["kind"] != "machine":
            raise ValueError(f"expected schema {SCHEMA}, got {machine['schema']}")
        unfinished = machine["unfinished"]
        return Compute(
            count=int(machine["count"]),
            error=_error(machine["error"]),
            unfinished=f"{unfinished['why']}; its last step: {unfinished['step']}" if unfinished else "",
            replica=str(machine["replica"]),
            gpus=tuple(_gpu(row, number) for number, row in enumerate(gpus)),
        )
    except (ValueError, LookupError, TypeError, AttributeError) as error:
        raise Unanswered(f"the compute probe printed no result ({error}); {otherwise}") from error


def _gpu(row: Mapping[str, Any], number: int) -> GpuResult:
    return GpuResult(
        index=number if row.get("mig") else int(row["index"]),
        name=str(row.get("name", "")),
        uuid=str(row.get("uuid", "")),
        mig=str(row.get("mig", "")),
        capability=str(row.get("capability", "")),
        memory_mib=int(row.get("memory_mib", 0)),
        free_mib=int(row.get("free_mib", 0)),
        computed_mib=int(row.get("computed_mib", 0)),
        pattern_mib=int(row.get("pattern_mib", 0)),
        h2d_gbps=float(row.get("h2d_gbps", 0)),
        d2h_gbps=float(row.get("d2h_gbps", 0)),
        error=_error(row["error"]),
        wrong=_wrong(row.get("wrong"), "result") or _wrong(row.get("pattern_wrong"), "pattern"),
        copies=tuple(_copy(peer) for peer in row["peers"]),
    )


def _copy(peer: Mapping[str, Any]) -> Copy:
    return Copy(
        to=int(peer["index"]),
        error=_error(peer["error"]),
        wrong=_wrong(peer.get("wrong"), "copy"),
        access=bool(peer.get("access")),
        gbps=float(peer.get("gbps", 0)),
    )


def _error(record: Mapping[str, Any] | None) -> str:
    if not record:
        return ""
    number = f" ({record['number']})" if record["number"] >= 0 else ""
    log = f": {record['log']}" if record["log"] else ""
    return f"{record['what']}: {record['call']}: {record['name']}{number}: {record['meaning']}{log}"


def _wrong(record: Mapping[str, Any] | None, what: str) -> str:
    return f"{what} at byte {record['byte']}: expected {record['expected']}, got {record['got']}" if record else ""


def defects(gpu: GpuResult, *, simulated: bool, mib: int = MIB) -> list[str]:
    """What is wrong with the results of one GPU. mib: on how many MiB it has to have computed."""
    name = f"GPU {gpu.index} ({gpu.mig or gpu.uuid or 'unknown'})"
    if gpu.error:
        return [f"{name}: {gpu.error}"]
    if gpu.wrong:
        return [f"{name}: {gpu.wrong}"]
    if gpu.computed_mib < mib and not simulated and not gpu.mig:
        free = f"{gpu.free_mib} of {gpu.memory_mib} MiB are free: other processes use the GPU"
        return [f"{name}: expected {mib} MiB of results, got {gpu.computed_mib}: {free}"]
    return []


def missing(compute: Compute) -> list[str]:
    """GPUs without a result, with the reason."""
    present = {gpu.index for gpu in compute.gpus}
    return [f"GPU {index}: no result" for index in range(compute.count) if index not in present]


def copy_defects(compute: Compute, linked: Sequence[tuple[int, int]]) -> list[str]:
    """What is wrong with copies between GPUs whose own results are right. linked: pairs that need peer access."""
    usable = [gpu for gpu in compute.gpus if gpu.right]
    found = []
    for gpu, other in itertools.permutations(usable, 2):
        pair = f"GPU {gpu.index} to GPU {other.index}"
        copy = next((copy for copy in gpu.copies if copy.to == other.index), None)
        if copy is None:
            found.append(f"{pair}: no copy was made")
        elif copy.error or copy.wrong:
            found.append(f"{pair}: {copy.error or copy.wrong}")
        elif not copy.access and {(gpu.index, other.index), (other.index, gpu.index)} & set(linked):
            found.append(f"{pair}: they have NVLink, but CUDA has no peer access between them")
    return found
