"""The service: neuron-monitor's reports in, one file of embedded metric documents out.

It ends when neuron-monitor ends, and systemd starts both again. A report is the sign of life: without one for the
watchdog's time systemd restarts the unit, so a neuron-monitor that hangs does not go unnoticed.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from typing import Any, Dict, List, Optional

from hwevents.notify import Notifier
from hwevents.sinks import FileSink

from .documents import DIMENSIONS, Settings, documents

MONITOR = "/opt/aws/neuron/bin/neuron-monitor"
CONFIGURATION = "/etc/gpu-ami/neuron-monitor.json"
STATUS = "/run/gpu-ami-neuron/neuron-metrics.json"
_CAP = 256 * 1024 * 1024  # bytes of the log, where logrotate does not run often enough
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Publisher:
    """Writes the documents of reports. `counts`: reports, documents, malformed lines, reports with errors, dropped."""

    def __init__(self, settings: Settings, sink: FileSink, status: str) -> None:
        self.settings = settings
        self.sink = sink
        self.status = status
        self.counts = {"reports": 0, "documents": 0, "malformed": 0, "with_errors": 0, "dropped": 0}
        self.problems: List[str] = []

    def take(self, line: bytes) -> bool:
        """Publishes one line of neuron-monitor. False where it is no report."""
        report = _parsed(line)
        if report is None:
            self.counts["malformed"] += 1
            self._complain(["not a report: %s" % line[:200].decode("utf-8", "replace").strip()])
            return False
        made, problems = documents(report, self.settings, time.time_ns() // 1000)
        self.counts["reports"] += 1
        self.counts["with_errors"] += bool(problems)
        self._complain(problems)
        if made:
            self._write(b"".join(_encode(document).encode("ascii") + b"\n" for document in made), len(made))
        self.write_status()
        return True

    def _write(self, data: bytes, count: int) -> None:
        """A full disk costs this report, not the service: the next one is as good."""
        try:
            self.sink.flush()  # the rest of a line that the disk refused
            self.sink.open()
            self.sink.pending = data
            self.sink.flush()
            self.counts["documents"] += count
        except OSError as error:
            self.counts["dropped"] += count
            whole = len(self.sink.pending) == len(data)
            self.sink.pending = b"" if whole else self.sink.pending.split(b"\n", 1)[0] + b"\n"
            self._complain(["cannot write %s: %s" % (self.sink.path, error.strerror)])

    def _complain(self, problems: List[str]) -> None:
        """Each problem once in the journal, until it has gone."""
        for problem in problems:
            if problem not in self.problems:
                print(problem, file=sys.stderr, flush=True)
        self.problems = problems

    def write_status(self) -> None:
        """What `status` and the proof read; the time is CLOCK_MONOTONIC."""
        document = dict(self.counts, pid=os.getpid(), problems=self.problems, report_monotonic_s=time.monotonic())
        fresh = self.status + ".new"
        try:
            with open(fresh, "w", encoding="ascii") as file:
                json.dump(document, file)
            os.replace(fresh, self.status)
        except OSError as error:
            print("cannot write %s: %s" % (self.status, error.strerror), file=sys.stderr, flush=True)


def _parsed(line: bytes) -> Optional[Dict[str, Any]]:
    try:
        report = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return report if isinstance(report, dict) and "neuron_hardware_info" in report else None


def run(monitor: List[str], publisher: Publisher, notifier: Notifier) -> int:
    """Publishes until neuron-monitor ends (its status, at least 1) or SIGTERM (0)."""
    stopped: List[int] = []
    started: List["subprocess.Popen[bytes]"] = []

    def stop(signum: int, _frame: object) -> None:
        stopped.append(signum)
        for process in started:
            process.terminate()

    # Before neuron-monitor starts: a SIGTERM in between would end this process alone, and leave the monitor.
    for signum in (signal.SIGTERM, signal.SIGINT):
        signal.signal(signum, stop)
    child = subprocess.Popen(monitor, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE)
    started.append(child)
    if stopped:
        child.terminate()
    notifier.send("READY=1", "STATUS=waiting for the first report")
    assert child.stdout is not None
    for line in child.stdout:
        if publisher.take(line):
            counts = "%(reports)d reports, %(documents)d documents, %(with_errors)d with errors" % publisher.counts
            notifier.send("WATCHDOG=1", "STATUS=" + counts)
    status = child.wait()
    notifier.send("STOPPING=1")
    if stopped:
        return 0
    print("neuron-monitor ended with status %d" % status, file=sys.stderr, flush=True)
    return max(1, status)


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(prog="neuron-metrics.py", description="Publishes what neuron-monitor reports.")
    parser.add_argument("--log", required=True, help="file that the CloudWatch agent sends")
    parser.add_argument("--namespace", required=True)
    known = ", ".join(DIMENSIONS)
    parser.add_argument("--dimensions", default="", help="names of dimensions, separated by commas: " + known)
    parser.add_argument("--high-resolution", action="store_true", help="store by the second instead of by the minute")
    parser.add_argument("--monitor", default=MONITOR, help="default: %(default)s")
    parser.add_argument("--configuration", default=CONFIGURATION, help="of neuron-monitor; default: %(default)s")
    parser.add_argument("--status-path", default=STATUS, help="default: %(default)s")
    args = parser.parse_args(arguments)
    asked = [name for name in args.dimensions.split(",") if name]
    for name in asked:
        if name not in DIMENSIONS:
            parser.error("--dimensions: expected %s, got %s" % (known, name))
    dimensions = tuple(name for name in DIMENSIONS if name in asked)
    settings = Settings(args.namespace, dimensions, args.high_resolution)
    publisher = Publisher(settings, FileSink(args.log, _CAP), args.status_path)
    try:
        return run([args.monitor, "-c", args.configuration], publisher, Notifier())
    except OSError as error:
        print("cannot start %s: %s" % (args.monitor, error.strerror), file=sys.stderr)
        return 1
