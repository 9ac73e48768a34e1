"""Benchmark of the event parser against the former system: throughput, lost Xids, CPU, memory, wake-ups, latency.

    python bench/bench_parser.py            the table (about five minutes)
    python bench/bench_parser.py --quick    fewer records, shorter idle time (half a minute)
    python bench/bench_parser.py --json     the figures as JSON

`ours` is the program of the image. It reads from a socket pair, which returns one record for each read, as /dev/kmsg
does. `old way` is the former system's method (`bench/old_way.py`): `tail -F` on a file, a substring test on each line,
and open, append and close for each match. It gets the same records as lines of a file that grows; on a machine, its
source was a snapshot of the boot messages (/var/log/dmesg).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "onhost" / "event_parser" / "aws-hwaccel-event-parser.py"
OLD_WAY = ROOT / "bench" / "old_way.py"
QUIET = "usb 1-1.2: new high-speed USB device number {0} using xhci_hcd, with a line as long as most lines are"
XID = "NVRM: Xid (PCI:0000:00:1e): 31, pid={0}, name=python3, Ch 00000008, intr 00000000. MMU Fault: ENGINE GRAPHICS"
MIXES = {"quiet": 0, "1 % Xids": 100, "all Xids": 1}


def text(number: int, every: int) -> str:
    return (XID if every and number % every == 0 else QUIET).format(number)


def record(number: int, every: int) -> bytes:
    return f"4,{number},{time.monotonic_ns() // 1000},c;{text(number, every)}\n".encode()


class Watched:
    """A running program under test, its log, and functions that send it records."""

    def __init__(
        self, process: subprocess.Popen[bytes], log: Path, send: Callable[[int, int], None], close: Callable[[], None]
    ):
        self.process, self.log, self.send, self.close = process, log, send, close
        self.family = [process.pid]

    def until(self, lines: int, seconds: float = 300) -> None:
        """Waits until the log has this number of lines."""
        deadline = time.monotonic() + seconds
        count = position = 0
        while count < lines:
            if time.monotonic() > deadline:
                raise SystemExit(f"{self.log.name}: {count} of {lines} lines after {seconds:.0f} s")
            if self.log.exists() and self.log.stat().st_size > position:
                with self.log.open("rb") as file:
                    file.seek(position)
                    part = file.read()
                position += len(part)
                count += part.count(b"\n")
            else:
                time.sleep(0.0005)

    def memory_mib(self) -> float:
        """Resident memory of the program and its children."""
        total = 0
        for pid in self.family:
            for line in Path(f"/proc/{pid}/status").read_text().splitlines():
                if line.startswith("VmRSS:"):
                    total += int(line.split()[1])
        return total / 1024

    def cpu_s(self) -> float:
        """User and system time of the program and its children so far."""
        ticks = 0
        for pid in self.family:
            fields = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()
            ticks += int(fields[11]) + int(fields[12])
        return ticks / os.sysconf("SC_CLK_TCK")

    def switches(self) -> int:
        """Voluntary context switches of the program and its children: each is a wake-up."""
        return sum(
            int(line.split()[1])
            for pid in self.family
            for line in Path(f"/proc/{pid}/status").read_text().splitlines()
            if line.startswith("voluntary_ctxt_switches")
        )


@contextmanager
def ours(folder: Path) -> Iterator[Watched]:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    near.setblocking(False)
    far.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 22)
    (folder / "state").mkdir()
    log = folder / "gpuevent.log"
    process = subprocess.Popen(
        [sys.executable, "-sSE", PROGRAM, "run", "--source", f"fd:{near.fileno()}", "--raw-log", log,
         "--json-log", folder / "gpuevent.jsonl", "--state-dir", folder / "state", "--status-path", folder / "status",
         "--nvidia-smi", folder / "none", "--policy", folder / "none"],
        pass_fds=[near.fileno()], stdin=subprocess.DEVNULL,
    )  # fmt: skip
    near.close()
    watched = Watched(process, log, lambda number, every: far.sendall(record(number, every)), far.close)
    try:
        while not (folder / "status").exists():
            time.sleep(0.005)
        yield watched
    finally:
        process.kill()
        process.wait()
        far.close()


@contextmanager
def theirs(folder: Path) -> Iterator[Watched]:
    source, log = folder / "dmesg", folder / "gpuevent.log"
    source.touch()
    feed = source.open("ab", buffering=0)
    process = subprocess.Popen([sys.executable, OLD_WAY, source, log], stdin=subprocess.DEVNULL, start_new_session=True)
    pending = bytearray()

    def send(number: int, every: int) -> None:
        pending.extend(f"[{time.monotonic():12.6f}] {text(number, every)}\n".encode())
        if len(pending) > 65536 or not buffered[0]:
            flush()

    def flush() -> None:
        feed.write(pending)
        pending.clear()

    buffered = [False]
    watched = Watched(process, log, send, flush)
    watched.buffered = buffered  # type: ignore[attr-defined]
    try:
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        while not children.read_text().split():
            time.sleep(0.005)
        watched.family += [int(child) for child in children.read_text().split()]
        time.sleep(0.3)  # tail cannot report that it is ready
        yield watched
    finally:
        os.killpg(process.pid, 9)
        process.wait()
        feed.close()


WAYS = {"ours": ours, "old way": theirs}


def throughput(way: str, every: int, count: int) -> dict[str, float]:
    """`count` records at full speed; the last one is an Xid, which shows when all were read."""
    with tempfile.TemporaryDirectory() as name, WAYS[way](Path(name)) as watched:
        if way == "old way":
            watched.buffered[0] = True  # type: ignore[attr-defined]
        expected = 1 + (len(range(0, count, every)) if every else 0)
        cpu, started = watched.cpu_s(), time.monotonic()
        for number in range(count):
            watched.send(number, every)
        watched.send(count, 1)
        if way == "old way":
            watched.close()  # flushes its buffer
        watched.until(expected)
        seconds = time.monotonic() - started
        return {
            "records_per_second": round(count / seconds),
            "cpu_us_per_record": round((watched.cpu_s() - cpu) / count * 1e6, 2),
            "rss_mib": round(watched.memory_mib(), 1),
            "xids_lost": expected - watched.log.read_bytes().count(b"Xid ("),
        }


def latency(way: str, samples: int) -> dict[str, float]:
    """Time from sending a record until its line is in the raw log, one record at a time."""
    times = []
    with tempfile.TemporaryDirectory() as name, WAYS[way](Path(name)) as watched:
        for number in range(samples):
            before = watched.log.stat().st_size if watched.log.exists() else 0
            started = time.perf_counter()
            watched.send(number, 1)
            while not watched.log.exists() or watched.log.stat().st_size == before:
                pass
            times.append((time.perf_counter() - started) * 1000)
            time.sleep(0.004)
    cuts = statistics.quantiles(times, n=100)
    return {"p50_ms": round(cuts[49], 2), "p99_ms": round(cuts[98], 2), "max_ms": round(max(times), 2)}


def idle(way: str, seconds: float) -> dict[str, float]:
    """Wake-ups a minute and memory of an idle program."""
    with tempfile.TemporaryDirectory() as name, WAYS[way](Path(name)) as watched:
        watched.send(0, 1)
        watched.until(1)
        time.sleep(2.5)
        before = watched.switches()
        time.sleep(seconds)
        return {
            "wake_ups_per_minute": round((watched.switches() - before) * 60 / seconds, 1),
            "rss_mib": round(watched.memory_mib(), 1),
        }


def measure(quick: bool) -> dict[str, Any]:
    count, samples, seconds = (20000, 200, 10.0) if quick else (100000, 1000, 125.0)
    figures: dict[str, Any] = {"python": platform.python_version(), "cpus": os.cpu_count(), "records": count}
    figures["load"] = round(os.getloadavg()[0], 1)
    for way in WAYS:
        rates = {mix: throughput(way, every, count) for mix, every in MIXES.items()}
        figures[way] = {"throughput": rates, "latency": latency(way, samples), "idle": idle(way, seconds)}
    return figures


_ROWS = (
    ("latency", "p50_ms", "record to file, p50 ms"),
    ("latency", "p99_ms", "record to file, p99 ms"),
    ("latency", "max_ms", "record to file, worst ms"),
    ("idle", "wake_ups_per_minute", "wake-ups a minute, idle"),
    ("idle", "rss_mib", "RSS MiB, idle"),
)
_RATES = (
    ("records_per_second", "records/s"),
    ("cpu_us_per_record", "CPU µs a record"),
    ("rss_mib", "RSS MiB after"),
    ("xids_lost", "Xids lost"),
)


def table(figures: dict[str, Any]) -> str:
    title = f"Python {figures['python']}, {figures['cpus']} CPUs, load {figures['load']}, {figures['records']} records"
    lines = [title, "", "| | ours | old way |", "|---|---|---|"]
    for mix in MIXES:
        for key, label in _RATES:
            values = [f"{figures[way]['throughput'][mix][key]:,}" for way in WAYS]
            lines.append(f"| {mix}: {label} | " + " | ".join(values) + " |")
    for part, key, label in _ROWS:
        lines.append(f"| {label} | " + " | ".join(str(figures[way][part][key]) for way in WAYS) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer records, shorter idle time")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    args = parser.parse_args()
    figures = measure(args.quick)
    print(json.dumps(figures, indent=1) if args.json else table(figures))


if __name__ == "__main__":
    main()
