"""The service: looks for notices, runs the scripts once for each, and writes the log that the CloudWatch agent sends.

`--once` looks once and ends. SIGUSR1 is a drill: a notice that runs the drill's scripts instead of those of drain.d.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import threading
import time
from typing import Any, Dict, List, Optional

from hwevents.notify import Notifier
from hwevents.sinks import FileSink

from . import scripts
from .metadata import ADDRESS, Metadata, MetadataError
from .notices import READERS, Notice, read
from .state import State

SCHEMA = "gpu-ami/drain/1"
SCRIPTS = "/etc/gpu-ami/drain.d"
DRILL_SCRIPTS = "/opt/aws/cloudwatch/drain/drill.d"
STATE = "/var/lib/gpu-ami/drain-hook/state.json"
STATUS = "/run/gpu-ami-drain-hook/status.json"
DRILL = "drill"
_CAP = 64 * 1024 * 1024  # bytes of the log, where logrotate does not run often enough
_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_encode = json.JSONEncoder(separators=(",", ":")).encode


class Service:
    """One instance's watch. `counts`: looks, looks with a problem, notices handled, drills."""

    def __init__(self, options: argparse.Namespace, notifier: Notifier) -> None:
        self.options = options
        self.metadata = Metadata(options.imds)
        self.notifier = notifier
        self.sink = FileSink(options.log, _CAP)
        self.state: Optional[State] = None
        self.identity = {"instance_id": "", "region": ""}
        self.counts = {"looks": 0, "with_problems": 0, "notices": 0, "drills": 0}
        self.problems: List[str] = []
        self.drills = 0  # asked for and not yet run
        self.stopping = False
        self.wake = threading.Event()

    def run(self) -> int:
        """Looks at each interval until SIGTERM."""
        self.notifier.send("READY=1", "STATUS=looking for notices")
        while not self.stopping:
            began = time.monotonic()
            self.look()
            self.write_status()
            self.notifier.send(
                "WATCHDOG=1", "STATUS=%(looks)d looks, %(notices)d notices, %(drills)d drills" % self.counts
            )
            self.wake.wait(max(0.0, began + self.options.interval - time.monotonic()))
            self.wake.clear()
        self.notifier.send("STOPPING=1")
        return 0

    def look(self) -> bool:
        """Looks once, and does what the notices ask for. False where something could not be read."""
        self.counts["looks"] += 1
        problems = [] if self.state else self._identify()
        found: List[Notice] = []
        if self.state:
            found, problems = read(self.metadata, self.options.notices)
        self._complain(problems)
        self.counts["with_problems"] += bool(problems)
        for notice in found:
            if self.state and not self.state.is_done(notice) and not self.stopping:
                self.handle(self.state, notice, self.options.scripts)
                self.counts["notices"] += 1
        self._drill()
        return not problems

    def _identify(self) -> List[str]:
        """Which instance this is: the state counts for this one alone."""
        try:
            for name, category in (("instance_id", "instance-id"), ("region", "placement/region")):
                self.identity[name] = self.metadata.get(category) or ""
        except MetadataError as error:
            return [str(error)]
        self.state = State(self.options.state, self.identity["instance_id"])
        names, refused = scripts.listed(self.options.scripts)
        self._complain(refused)
        self._log("start", {"notices": self.options.notices, "scripts": names, "refused": refused})
        return []

    def _drill(self) -> None:
        if self.drills and self.state:
            self.drills -= 1
            now = _stamp()
            self.handle(self.state, Notice(DRILL, DRILL, now, "%s %s" % (DRILL, now)), self.options.drill_scripts)
            self.counts["drills"] += 1

    def handle(self, state: State, notice: Notice, folder: str) -> None:
        """Runs what has not run for this notice. A stop of the service leaves the rest for the next start."""
        entry = state.entry(notice, self.options.timeout)
        of_notice = {"notice": notice.kind, "action": notice.action, "notice_time": notice.time}
        self._log("notice", of_notice)
        names, refused = scripts.listed(folder)
        for name in names:
            if self.stopping:
                return
            if state.begin(notice, name):
                left = entry["deadline_monotonic_s"] - time.monotonic()
                path = os.path.join(folder, name)
                state.end(notice, name, scripts.run(path, self._environment(notice, left), left, self._tick))
        if not self.stopping:
            ran = [{"name": name, **_result(result)} for name, result in entry["scripts"].items()]
            self._log("drained", {**of_notice, "scripts": ran, "refused": refused})
            state.finish(notice)

    def _tick(self) -> bool:
        self.notifier.send("WATCHDOG=1")
        return not self.stopping

    def _environment(self, notice: Notice, left: float) -> Dict[str, str]:
        return {
            "PATH": _PATH,
            "DRAIN_NOTICE": notice.kind,
            "DRAIN_ACTION": notice.action,
            "DRAIN_TIME": notice.time,
            "DRAIN_INSTANCE_ID": self.identity["instance_id"],
            "DRAIN_REGION": self.identity["region"],
            "DRAIN_SECONDS": str(max(0, int(left))),
        }

    def _log(self, event: str, more: Dict[str, Any]) -> None:
        """A line of the log, and of the journal. A full disk does not stop a drain."""
        line = {"time": _stamp(), "schema": SCHEMA, "event": event, "instance_id": self.identity["instance_id"], **more}
        text = _encode(line)
        print(text, flush=True)
        try:
            self.sink.open()
            self.sink.pending += text.encode("ascii") + b"\n"
            self.sink.flush()
        except OSError as error:
            print("cannot write %s: %s" % (self.sink.path, error.strerror), flush=True)

    def _complain(self, problems: List[str]) -> None:
        """Each problem once in the journal, until it has gone."""
        for problem in problems:
            if problem not in self.problems:
                print(problem, flush=True)
        self.problems = problems

    def write_status(self) -> None:
        """What the proof reads; the time is CLOCK_MONOTONIC."""
        document = dict(self.counts, pid=os.getpid(), problems=self.problems, look_monotonic_s=time.monotonic())
        fresh = self.options.status + ".new"
        try:
            with open(fresh, "w", encoding="ascii") as file:
                json.dump(document, file)
            os.replace(fresh, self.options.status)
        except OSError as error:
            print("cannot write %s: %s" % (self.options.status, error.strerror), flush=True)

    def on_signal(self, signum: int, _frame: object) -> None:
        if signum == signal.SIGUSR1:
            self.drills += 1
        else:
            self.stopping = True
        self.wake.set()


def _result(ran: Dict[str, Any]) -> Dict[str, Any]:
    return {"outcome": ran["outcome"] or "interrupted", "status": ran.get("status"), "seconds": ran.get("seconds")}


def _stamp() -> str:
    seconds, nanos = divmod(time.time_ns(), 1000000000)
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds)) + ".%06dZ" % (nanos // 1000)


def _notices(text: str) -> List[str]:
    names = [name for name in text.split(",") if name]
    for name in names:
        if name not in READERS:
            raise argparse.ArgumentTypeError("expected %s, got %s" % (", ".join(READERS), name))
    return names


def main(arguments: Optional[List[str]] = None) -> int:
    parser = argparse.ArgumentParser(
        prog="gpu-ami-drain-hook.py", description="Runs scripts at a notice of interruption."
    )
    kinds = "notices to act on, separated by commas: " + ", ".join(READERS)
    parser.add_argument("--notices", type=_notices, required=True, metavar="KIND,…", help=kinds)
    parser.add_argument("--log", required=True, help="file that the CloudWatch agent sends")
    parser.add_argument(
        "--timeout", type=float, default=100.0, help="seconds for all scripts of a notice; default: %(default)g"
    )
    parser.add_argument("--interval", type=float, default=5.0, help="seconds between two looks; default: %(default)g")
    parser.add_argument("--scripts", default=SCRIPTS, help="default: %(default)s")
    parser.add_argument("--drill-scripts", default=DRILL_SCRIPTS, help="default: %(default)s")
    parser.add_argument("--imds", default=ADDRESS, help="default: %(default)s")
    parser.add_argument("--state", default=STATE, help="default: %(default)s")
    parser.add_argument("--status", default=STATUS, help="default: %(default)s")
    parser.add_argument(
        "--once", action="store_true", help="look once and end; status 1 where the metadata was not readable"
    )
    options = parser.parse_args(arguments)
    service = Service(options, Notifier())
    for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(signum, service.on_signal)
    return (0 if service.look() else 1) if options.once else service.run()
