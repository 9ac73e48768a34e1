"""Writes what AWS Support asks for: the diagnosis, logs, and NVIDIA's bug report. `gpu-ami-diagnose --bundle` runs it.

Python 3.6 or newer, standard library. Nothing of it is secret: no keys, credentials or environments of processes.
"""

import io
import os
import tarfile
import time
from typing import Any, Callable, Dict, List, Sequence, Tuple

AGENT = "/opt/aws/amazon-cloudwatch-agent"
BUG_REPORT = "nvidia-bug-report.log.gz"
BUG_REPORT_SECONDS = 180.0  # the vendor's script takes more than a minute and can hang with the GPU
BUG_REPORT_BYTES = 16 << 20
# File → the command whose output it has. The evidence of a proof (evidence.py) has the same files.
FILES = {
    "kernel.log": "dmesg --time-format=iso 2>/dev/null || dmesg",
    "failed-units.txt": "systemctl list-units --failed --plain --no-legend --no-pager",
    "nvidia-smi.txt": "nvidia-smi -q",
    "nvidia-smi.xml": "nvidia-smi -q -x",
    "nvidia-driver.txt": "cat /proc/driver/nvidia/version; modinfo nvidia || modinfo nvidia-current; dkms status",
    "pci.txt": "lspci -nnk 2>/dev/null || grep -H . /sys/bus/pci/devices/*/uevent",
    "agent.log": "tail -n 5000 " + AGENT + "/logs/amazon-cloudwatch-agent.log",
    "gpuevent.log": "tail -n 5000 /var/log/gpuevent.log",
    "gpuevent.jsonl": "tail -n 5000 /var/log/gpuevent.jsonl",
    "parser.txt": "systemctl status --no-pager -l aws-hw-monitor.service; systemctl show aws-hw-monitor.service",
    "parser-state.txt": "tail -n +1 /run/gpu-ami/event-parser.json /var/lib/gpu-ami/event-parser/* 2>&1",
    "memory.txt": "free -m; df -h; ps -eo pid,user,stat,rss,etime,comm",
}
FOLDER = "gpu-ami-diagnosis/"
_BYTES = 16 << 20  # of a file
_WHY = {124: "no end before the deadline", 127: "not installed"}
Execute = Callable[[Sequence[str], float], Tuple[int, bytes, bytes]]


def write(path: str, documents: Dict[str, str], execute: Execute, seconds: float) -> List[str]:
    """Writes a new .tar.gz that only its owner reads; a line for each thing it lacks. OSError: it cannot be written.

    execute: runs a command under a deadline, for its exit status, output and errors. seconds: deadline of a file.
    """
    missing = []
    target = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(target, "wb") as file, tarfile.open(fileobj=file, mode="w:gz") as archive:
        for name, text in documents.items():
            _add(archive, name, text.encode())
        for name, command in FILES.items():
            status, out, err = execute(("sh", "-c", command), seconds)
            _add(archive, name, (out + err)[:_BYTES])
            missing += _lack(name, status)
        status, report, last = execute(_bug_report(), BUG_REPORT_SECONDS)
        if report:
            _add(archive, BUG_REPORT, report)
        missing += _lack(BUG_REPORT, status)
        _add(archive, "missing.txt", "".join(line + "\n" for line in missing).encode() + last)
    return missing


def _bug_report() -> List[str]:
    """The command that prints the vendor's report: bug_report.sh, beside this file."""
    program = os.path.join(os.path.dirname(os.path.realpath(__file__)), "bug_report.sh")
    return ["sh", program, "%g" % (BUG_REPORT_SECONDS - 20), str(BUG_REPORT_BYTES)]


def _lack(name: str, status: int) -> List[str]:
    return ["%s: %s" % (name, _WHY.get(status, "exit status %d" % status))] if status else []


def _add(archive: Any, name: str, content: bytes) -> None:
    entry = tarfile.TarInfo(FOLDER + name)
    entry.size, entry.mtime, entry.mode = len(content), int(time.time()), 0o600
    archive.addfile(entry, io.BytesIO(content))
