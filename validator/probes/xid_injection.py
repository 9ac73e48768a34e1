"""Causes a real fault on a real GPU without damage: selects the GPU, runs the program, reads the kernel's messages.

The fault affects one process: the MMU refuses a store, and the driver ends only the channels of that process (Xid 31
and 13: "restart the application"). Memory, other processes and the GPU are not affected, and no reset is needed; a
second process then stores to its own memory to show that. With MPS a fault ends all clients of a GPU (NVIDIA's MPS
guide, "Error Containment"), so machines with MPS and GPUs in use are refused.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from validator import remote
from validator.probes.nvidia_smi import Gpu

PROGRAM = remote.PROGRAMS / "provoke_xid.py"
PROCESS = "gpu-ami-provoke"
CODES = (31, 13)  # an MMU fault, or a graphics engine exception if the SM detects it first
SECONDS = 180.0  # without the persistence daemon the first process initializes all GPUs of the machine
PIDS_MAY_LACK = 570  # from this branch on the driver names the process only if it knows the channel
KMSG = "dd if=/dev/kmsg bs=8192 iflag=nonblock 2>/dev/null"  # reads record by record and exits instead of waiting
_NOBODY = 65534
# Root starts it; the program runs as nobody without the caller's environment: no MPS pipe, no compiled kernel in a
# home directory, no core file.
_LAUNCHER = f"""\
import os, resource, sys
if os.geteuid() == 0:
    os.setgroups([]); os.setgid({_NOBODY}); os.setuid({_NOBODY})
resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
os.chdir("/")
env = {{"PATH": "/usr/bin:/bin", "CUDA_CACHE_DISABLE": "1", "CUDA_MPS_PIPE_DIRECTORY": "/nonexistent"}}
os.execve(sys.executable, [sys.executable, "-IS", "-c"] + sys.argv[1:], env)
"""
_XID = re.compile(
    r"NVRM: Xid \(PCI:(?P<pci>[0-9a-fA-F:]+)[^)]*\): (?P<code>\d+)(?:, pid=(?P<pid>\d+))?(?:, name=(?P<name>[^,]*))?"
)


@dataclass(frozen=True)
class Result:
    """What the program did on the GPU: "faulted", "not refused", "worked", "refused" or "no libcuda".

    pid, name and uid are those of its process; stored: when it stored to page zero, in seconds since 1970.
    """

    outcome: str
    message: str = ""
    pid: int = 0
    name: str = ""
    uid: int = 0
    stored: float = 0.0


class Unfit(Exception):
    """No GPU can be used for a fault; the message says why."""


@dataclass(frozen=True)
class Record:
    """One Xid in the kernel log. pid, process: None if the driver did not name them."""

    seq: int
    text: str
    pci: str
    code: int
    pid: int | None
    process: str | None

    def fields(self) -> dict[str, object]:
        """The fields of the parser's event that this record determines."""
        process = {"pid": self.pid, "process": self.process}
        return {"kind": "xid", "code": self.code, "pci": f"{self.pci}.0", **process, "origin": "kernel"}


def choose(gpus: Sequence[Gpu], commands: Iterable[str]) -> Gpu:
    """The first idle GPU. commands: names of all processes of the machine. Unfit: no GPU can be used."""
    if any(name.startswith("nvidia-cuda-mps") for name in commands):
        raise Unfit("MPS runs on this machine, and a fault ends all of its clients on a GPU")
    reasons = []
    for gpu in gpus:
        if gpu.processes:
            reasons.append(f"GPU {gpu.pci} is used by {', '.join(gpu.processes)}")
        elif gpu.mig == "Enabled":
            reasons.append(f"GPU {gpu.pci} has MIG enabled")
        elif gpu.compute_mode == "Prohibited":
            reasons.append(f"GPU {gpu.pci} has compute mode Prohibited")
        else:
            return gpu
    raise Unfit(f"no GPU is idle: {'; '.join(reasons) or 'there is no GPU'}")


def command(pci: str, *, only_work: bool = False) -> str:
    """The command that runs the program on a host, as nobody, on the GPU at that address."""
    words = ["python3", "-IS", "-c", _LAUNCHER, PROGRAM.read_text(encoding="ascii"), pci, *(["work"] * only_work)]
    return " ".join(shlex.quote(word) for word in words)


def read_result(rc: int, stdout: str, stderr: str) -> Result:
    """The result that the program printed as JSON; `refused` with the last line of its output if it printed none."""
    line = (stdout.strip().splitlines() or [""])[-1]
    try:
        printed = json.loads(line)
    except ValueError:
        printed = None
    if isinstance(printed, dict) and "outcome" in printed:
        return Result(
            outcome=str(printed["outcome"]),
            message=str(printed.get("message", "")),
            pid=int(printed.get("pid", 0)),
            name=str(printed.get("name", "")),
            uid=int(printed.get("uid", 0)),
            stored=float(printed.get("stored", 0)),
        )
    lines = (stderr.strip() or stdout.strip()).splitlines() or ["no output"]
    return Result("refused", f"the program exited with status {rc}: {lines[-1]}")


def last_seq(kmsg: str) -> int:
    """The number of the newest record of /dev/kmsg; -1 if it is empty."""
    return max((seq for seq, _, _ in _records(kmsg)), default=-1)


def xids(kmsg: str, after: int, pci: str) -> list[Record]:
    """The kernel's Xids of a GPU in /dev/kmsg after a record number. pci: "0000:00:1e.0"."""
    records = []
    for seq, priority, text in _records(kmsg):
        xid = _XID.match(text)
        if seq <= after or priority >> 3 != 0 or xid is None or xid["pci"].lower() != pci.rpartition(".")[0]:
            continue
        pid = int(xid["pid"]) if xid["pid"] else None
        records.append(Record(seq, text, xid["pci"].lower(), int(xid["code"]), pid, xid["name"]))
    return records


def events(lines: Iterable[str], boot_id: str, seq: int) -> list[dict[str, object]]:
    """The parser's events of one record of /dev/kmsg in one boot."""
    matching = []
    for line in lines:
        if f'"seq":{seq}' in line.replace(" ", ""):
            event = json.loads(line)
            if (event.get("boot_id"), event.get("seq"), event.get("kind")) == (boot_id, seq, "xid"):
                matching.append(event)
    return matching


def _records(kmsg: str) -> Iterable[tuple[int, int, str]]:
    for line in kmsg.splitlines():
        head, semicolon, text = line.partition(";")
        fields = head.split(",")
        if semicolon and len(fields) >= 3 and fields[0].isdigit() and fields[1].isdigit():
            yield int(fields[1]), int(fields[0]), text
