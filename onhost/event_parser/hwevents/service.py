"""The live service: kernel log in, log files out. Only the kernel and one heartbeat timer wake it."""

from __future__ import annotations

import json
import os
import select
import signal
import sys
import time
from typing import Any, Dict, List, Optional

from . import VERSION, details, emf, kmsg
from .catalogue import Catalogue
from .environment import read_boot_id, read_driver, read_instance, read_node_name, read_ports
from .event import Builder, Moment
from .grammar import Broken, Lost, Sxid, Xid, is_of_driver, parse
from .initialisation import InitFailure
from .neuron import NeuronError
from .notify import Notifier, watchdog_seconds
from .options import Options
from .outbox import Batch, Outbox
from .seed import SeedMetrics
from .sinks import FileSink
from .snapshot import Snapshot
from .state import StateFile, last_logged
from .tracker import Tracker

BATCH = 512
_SETTLE_S = 1.0


def _report(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


class Service:
    """One run. `source` and `boot_id`: for tests; by default the kernel's."""

    def __init__(self, options: Options, source: Optional[kmsg.Source] = None, boot_id: Optional[str] = None) -> None:
        self.options = options
        self.boot_id = boot_id or read_boot_id()
        self.catalogue = Catalogue(policy_path=options.policy)
        self.tracker = Tracker(Builder(self.catalogue))
        self.tracker.pcie.ports_of = read_ports
        self.instance = read_instance()
        self.notifier = Notifier()
        self.counts = {"events": 0, "drills": 0, "malformed": 0, "raw_lines": 0}
        self.outbox = Outbox(
            FileSink(options.raw_log, options.raw_cap),
            FileSink(options.json_log, options.json_cap),
            StateFile(options.state_dir),
            _report,
        )
        self.raw_seq = -1
        self._stopping = False
        self._beat_now = False
        self.beat_due = float("inf")
        self.snapshot_process = None  # type: Optional[Snapshot]
        self._snapshot_done = False
        self.seed_process = SeedMetrics(options.nvidia_smi, options.seed_metrics_s) if options.seed_metrics_s else None
        self._lost_before = 0  # in this boot, by the processes before this one
        self._reported = {}  # type: Dict[str, int]
        self._last_lag = 0.0
        self._started = time.monotonic()
        self._last_save = 0.0
        self._wake_ups = 0
        self.status_due = False
        cursor = self._resume()
        self.tracker.driver = self.tracker.driver or read_driver(options.driver_version)
        self.source = source or kmsg.Source.open(options.source, cursor)
        self.source.last_seq = cursor
        self.source.seen_seq = max(cursor, self.raw_seq)
        for problem in self.catalogue.policy_errors:
            _report("policy: " + problem)

    def _resume(self) -> int:
        """Completes the previous process's intent. Returns the last processed sequence number (-1: read from the oldest)."""
        state = self.outbox.state.load()
        completed = self.outbox.recover(state, time.monotonic())
        if completed:
            _report("the previous run ended before it had written %d bytes of events; they were written now" % completed)
        if state.get("boot_id") == self.boot_id:
            self.tracker.remember(state.get("memory", {}))
            self.raw_seq = int(state.get("raw_seq", -1))
            self._snapshot_done = bool(state.get("snapshot_done"))
            self._lost_before = int(state.get("lost", 0))
            return int(state.get("seq", -1))
        logged = None if state else last_logged(self.options.json_log, self.boot_id)
        if logged is not None:
            _report("no valid checkpoint; by the JSON log, records up to %d are processed" % logged)
            self.raw_seq = logged
        return -1 if logged is None else logged

    def cursor(self) -> Dict[str, Any]:
        """The checkpoint for now: released events are processed, records of open events are read again after a restart."""
        oldest = self.tracker.oldest_open()
        return {
            "boot_id": self.boot_id,
            "seq": self.source.last_seq if oldest is None else oldest - 1,
            "raw_seq": self.raw_seq,
            "snapshot_done": self._snapshot_done,
            "lost": self.lost(),
            "memory": self.tracker.memory(),
        }

    def lost(self) -> int:
        """Kernel records of this boot that were overwritten before they were read, earlier processes included."""
        return self._lost_before + self.source.lost

    def run(self) -> None:
        """Runs until SIGTERM or SIGINT. No input and no full disk ends it."""
        wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write)
        before = [
            (signum, signal.signal(signum, self.on_signal))
            for signum in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1)
        ]
        poller = select.poll()
        poller.register(self.source.fd, select.POLLIN)
        poller.register(wake_read, select.POLLIN)
        # Ready before the backlog is read: a full ring buffer may take longer than systemd waits for a start.
        self.notifier.send("READY=1", "STATUS=reading %s" % self.options.source)
        self._beat()
        self.drain()
        self.start_snapshot(poller)
        while not self._stopping and not self.source.ended:
            ready = poller.poll(self.timeout_ms(self.beat_due))
            self._wake_ups += 1
            if any(fd == wake_read for fd, _ in ready):
                _empty(wake_read)
            if self.snapshot_process and any(fd == self.snapshot_process.fd for fd, _ in ready):
                self.read_snapshot(poller)
            self.publish_seed(poller, [fd for fd, _ in ready])
            self.drain()
            now = time.monotonic()
            if self.snapshot_process and now >= self.snapshot_process.deadline:
                self.end_snapshot(poller)
            if now >= self.beat_due or self._beat_now:
                self._beat()
        self.stop(wake_read, wake_write)
        for signum, handler in before:
            signal.signal(signum, handler)

    def _beat(self) -> None:
        self._beat_now = False
        self.heartbeat()
        self.beat_due = time.monotonic() + self._period()

    def stop(self, *pipe: int) -> None:
        self.notifier.send("STOPPING=1")
        self.commit([], everything=False)
        self.outbox.save_cursor(self.cursor(), True, time.monotonic())
        self.outbox.sync(time.monotonic())
        signal.set_wakeup_fd(-1)
        for fd in pipe:
            os.close(fd)

    def on_signal(self, signum: int, _frame: object) -> None:
        if signum in (signal.SIGTERM, signal.SIGINT):
            self._stopping = True
        elif signum == signal.SIGHUP:
            self.catalogue = Catalogue(policy_path=self.options.policy)
            self.tracker.builder.catalogue = self.catalogue
            for problem in self.catalogue.policy_errors:
                _report("policy: " + problem)
        self._beat_now = True

    def _period(self) -> float:
        return min(self.options.heartbeat_s, watchdog_seconds() or self.options.heartbeat_s)

    def timeout_ms(self, next_beat: float) -> int:
        """Milliseconds until the next deadline; when idle, that is the heartbeat."""
        now = time.monotonic()
        due = [next_beat]
        deadline = self.tracker.next_deadline_us()
        if deadline is not None:
            due.append(deadline / 1e6)
        if self.outbox.retry_at is not None:
            due.append(self.outbox.retry_at)
        if self.snapshot_process:
            due.append(self.snapshot_process.deadline)
        if self.seed_process:
            due.append(self.seed_process.next_due())
        if self._unsaved() or self.status_due:
            due.append(self._last_save + _SETTLE_S)
        return max(0, int((min(due) - now) * 1000) + 1)

    def _unsaved(self) -> bool:
        return not self.outbox.backlog and self.outbox.saved_cursor.get("seq") != self.cursor()["seq"]

    def drain(self) -> None:
        """Reads until the kernel has no more records or a heartbeat is due. In batches, so that the first event of a flood
        is on disk while the rest is read.
        """
        while True:
            before = self.source.records + self.source.skipped
            raw_lines = []  # type: List[bytes]
            for raw in self.source.read(BATCH):
                if kmsg.interesting(raw):
                    self._take(raw, raw_lines)
            self.commit(raw_lines)
            if self.source.records + self.source.skipped - before < BATCH or self._stopping:
                break
            if time.monotonic() >= self.beat_due:
                break
        now = time.monotonic()
        if (self._unsaved() or self.status_due) and now - self._last_save >= _SETTLE_S:
            self.settle(now)

    def settle(self, now: float) -> None:
        """Syncs the files and writes the status a second after the last event, so that neither delays an event's line."""
        self._last_save = now
        self.outbox.sync(now)
        if self._unsaved():
            self.outbox.save_cursor(self.cursor(), False, now)
        self._write_status()

    def _take(self, raw: bytes, raw_lines: List[bytes]) -> None:
        record = kmsg.parse_record(raw)
        if record is None:
            self.counts["malformed"] += 1
            return
        fact = parse(record.text)
        kernel = record.facility == kmsg.KERNEL_FACILITY
        if record.seq > self.raw_seq and (kernel or isinstance(fact, (Xid, Sxid, Lost, NeuronError, InitFailure))):
            if is_of_driver(record.text) or isinstance(fact, (Sxid, NeuronError, InitFailure)):
                raw_lines.append(kmsg.to_raw_line(record, isinstance(fact, (Lost, InitFailure))))
        if isinstance(fact, Broken):
            self.counts["malformed"] += 1
        elif fact is not None:
            fields = {"boot_id": self.boot_id, "seq": record.seq, "monotonic_us": record.monotonic_us}
            moment = Moment(record.seq, record.monotonic_us, "kernel" if kernel else "userland", fields)
            self.tracker.feed(moment, fact, time.monotonic() * 1e6)  # type: ignore[arg-type]

    def commit(self, raw_lines: List[bytes], everything: bool = False) -> None:
        now = time.monotonic()
        events = self.tracker.release(int(now * 1e6), everything=everything)
        if events:
            self._learn_environment()
        self.raw_seq = max(self.raw_seq, self.source.last_seq)
        lines = [self._event_line(event, now) for event in events]
        lines += self._loss_line()
        if raw_lines or lines:
            self.counts["raw_lines"] += len(raw_lines)
            self.outbox.put(Batch(raw_lines, lines, self.cursor()))
            self._last_save = now
        if self.outbox.backlog:
            self.outbox.commit(now)
            self.status_due = True

    def _event_line(self, event: Dict[str, Any], now: float) -> bytes:
        self.counts["drills" if event["origin"] == "userland" else "events"] += 1
        age = max(0.0, now - event["monotonic_us"] / 1e6)
        self._last_lag = age
        wall_us = time.time_ns() // 1000 - int(age * 1e6)
        return emf.to_line(emf.event_document(event, wall_us, self.instance, age))

    def _loss_line(self) -> List[bytes]:
        lost = self._since("lost", self.source.lost)
        if not lost:
            return []
        _report("%d kernel records were overwritten before they could be read" % lost)
        fields = {"boot_id": self.boot_id, "RecordsLost": lost, "records_lost_total": self.lost(), "before_seq": self.source.last_seq}
        return [self._document("loss", fields, {"RecordsLost": "Count"})]

    def _since(self, name: str, total: int) -> int:
        """How much a counter grew since it was last reported."""
        grown = total - self._reported.get(name, 0)
        self._reported[name] = total
        return grown

    def _document(self, kind: str, fields: Dict[str, Any], metrics: Dict[str, str]) -> bytes:
        return emf.to_line(emf.report_document(kind, time.time_ns() // 1000, self.instance, fields, metrics))

    def heartbeat(self) -> None:
        """Writes the heartbeat line and the status file, and notifies systemd's watchdog."""
        self._learn_environment()
        fields = dict(self._status(), Heartbeat=1, RecordsLost=0, LagSeconds=round(self._last_lag, 6))
        for name, total in (("RecordsMalformed", self.malformed_lines()), ("EventsDropped", self.outbox.dropped),
                            ("SinkErrors", self.outbox.errors), ("RecordsRead", self.source.records)):  # fmt: skip
            fields[name] = self._since(name, total)
        metrics = {"Heartbeat": "Count", "RecordsLost": "Count", "RecordsMalformed": "Count", "EventsDropped": "Count",
                   "SinkErrors": "Count", "RecordsRead": "Count", "LagSeconds": "Seconds"}  # fmt: skip
        self._last_lag = 0.0
        now = time.monotonic()
        self.outbox.put(Batch([], [self._document("heartbeat", fields, metrics)], self.cursor()))
        self.outbox.commit(now)
        if self.status_due:  # only events need a sync, heartbeats do not
            self.outbox.sync(now)
        self._last_save = now
        self._write_status()
        state = "%d records, %d events, %d lost" % (self.source.records, self.counts["events"], self.lost())
        self.notifier.send("WATCHDOG=1", "STATUS=" + state)

    def _learn_environment(self) -> None:
        """Reads what may appear after the service has started: cloud-init's instance id, the node's name, the driver's module."""
        if "InstanceId" not in self.instance:
            self.instance = read_instance()
        node_name = read_node_name(self.options.kubelet_environment)
        if node_name is not None:
            self.instance["NodeName"] = node_name
        if self.tracker.driver is None:
            self.tracker.driver = read_driver(self.options.driver_version)

    def malformed_lines(self) -> int:
        return self.counts["malformed"] + self.source.malformed

    def _status(self) -> Dict[str, Any]:
        return {
            "version": VERSION, "pid": os.getpid(), "boot_id": self.boot_id, "source": self.options.source,
            "heartbeat_period_s": self._period(), "uptime_s": round(time.monotonic() - self._started, 3),
            "last_seq": self.source.last_seq, "records_read": self.source.records, "events": self.counts["events"],
            "drills": self.counts["drills"], "raw_lines": self.counts["raw_lines"], "malformed": self.malformed_lines(),
            "records_lost": self.lost(), "overruns": self.source.overruns, "events_dropped": self.outbox.dropped,
            "sink_errors": self.outbox.errors, "backlog_bytes": self.outbox.backlog, "wake_ups": self._wake_ups,
            "checkpoint_seq": self.outbox.saved_cursor.get("seq", -1), "catalogue": self.catalogue.version,
            "policy_errors": self.catalogue.policy_errors, "driver": self.tracker.driver,
            "raw_log": self.options.raw_log, "json_log": self.options.json_log,
        }  # fmt: skip

    def _write_status(self) -> None:
        self.status_due = False
        document = dict(self._status(), schema="gpu-ami/event-parser-status/1", heartbeat_monotonic_s=time.monotonic())
        fresh = self.options.status_path + ".new"
        try:
            with open(fresh, "w", encoding="ascii") as file:
                json.dump(document, file)
            os.replace(fresh, self.options.status_path)
        except OSError as error:
            if self._since("status", self._reported.get("status", 0) + 1) and self._reported["status"] == 1:
                _report("cannot write %s: %s" % (self.options.status_path, error.strerror))

    def publish_seed(self, poller: "select.poll", ready: List[int]) -> None:
        """The former system's metrics, where they are asked for."""
        if self.seed_process is None:
            return
        lines = [emf.to_line(made) for made in self.seed_process.step(poller, ready, self.instance, time.monotonic())]
        if lines:
            self.outbox.put(Batch([], lines, self.cursor()))
            self.outbox.commit(time.monotonic())

    def start_snapshot(self, poller: "select.poll") -> None:
        if not self._snapshot_done:
            self.snapshot_process = Snapshot.start(self.options.nvidia_smi)
            self._snapshot_done = self.snapshot_process is None
            if self.snapshot_process:
                poller.register(self.snapshot_process.fd, select.POLLIN)

    def read_snapshot(self, poller: "select.poll") -> None:
        if self.snapshot_process and self.snapshot_process.read():
            self.end_snapshot(poller)

    def end_snapshot(self, poller: "select.poll") -> None:
        snapshot, self.snapshot_process, self._snapshot_done = self.snapshot_process, None, True
        if snapshot is None:
            return
        poller.unregister(snapshot.fd)
        lines = [self._document("recovery", self._with_advice(fields), metrics) for fields, metrics in snapshot.finish()]
        if lines:
            self.outbox.put(Batch([], lines, self.cursor()))
            self.outbox.commit(time.monotonic())

    def _with_advice(self, board: Dict[str, Any]) -> Dict[str, Any]:
        """The snapshot's fields with severity and action: a pending remap needs a reset, a failed one a replacement."""
        fields = dict(board, boot_id=self.boot_id)
        if fields.get("answered") or fields.get("unknown_count"):
            fields["severity"], fields["action"] = details.board_advice(board)
            action = self.catalogue.action(fields["action"])
            fields.update(ec2_action=action.ec2, ec2_meaning=action.instructions(board.get("pci")))
        return fields


def _empty(fd: int) -> None:
    try:
        while os.read(fd, 512):
            pass
    except BlockingIOError:
        pass
