"""Log files to CloudWatch Logs: events, batches, groups, streams and retention."""

from __future__ import annotations

import glob
import json
import os
import re
import threading
import time
from collections.abc import Callable

from .aws import Service, ServiceError, Stopping
from .configuration import Section, get_items, get_number, get_section, get_text
from .journal import Journal
from .tail import Tail
from .timestamps import TimestampFormat

_POLL_SECONDS = 0.5
_EVENT_BYTES = 1024 * 1024 - 26  # an event with its overhead
_BATCH_BYTES, _BATCH_EVENTS, _BATCH_SPAN_MS = 1024 * 1024, 10000, 24 * 3600 * 1000
_TRUNCATED = b"[Truncated...]"
_DEFAULT_FLUSH = 5.0

Event = tuple[int, str, int, int]  # time in ms, text, inode, offset after it


class Stream:
    """One entry of collect_list on one file."""

    def __init__(self, entry: Section, path: str, names: Callable[[str], str], state_folder: str) -> None:
        self.tail = Tail(path, state_folder)
        self.group = names(get_text(entry, "log_group_name") or path)
        self.stream = names(get_text(entry, "log_stream_name") or "{instance_id}")
        self.retention = int(get_number(entry, "retention_in_days", -1))
        self.group_class = get_text(entry, "log_group_class")
        form = get_text(entry, "timestamp_format")
        self._format = TimestampFormat(form, utc=entry.get("timezone") == "UTC") if form else None
        start = get_text(entry, "multi_line_start_pattern")
        self._start = self._format if start == "{timestamp_format}" else re.compile(start) if start else None
        filters = [item for item in get_items(entry, "filters") if isinstance(item, dict)]
        self._filters = [(item["type"], re.compile(item["expression"])) for item in filters]
        self._encoding = get_text(entry, "encoding", "utf-8")
        self.pending: tuple[bytes, int, int] | None = None  # an event that further lines may belong to
        self.opened = 0.0
        self._last_time = 0
        self.events: list[Event] = []
        self.since = 0.0
        self.skipped: tuple[int, int] | None = None  # of lines that a filter excluded: their offset counts as sent
        self.ready = False

    def read(self) -> None:
        """Reads the new lines of the file."""
        for line, inode, offset in self.tail.lines():
            if self.pending and self._continues(line):
                self.pending = (self.pending[0] + b"\n" + line, inode, offset)
                continue
            self.close_event()
            self.pending, self.opened = (line, inode, offset), time.monotonic()
        # The last event is complete after a short time, also if no further line follows.
        if self.pending and time.monotonic() - self.opened >= _POLL_SECONDS:
            self.close_event()

    def _continues(self, line: bytes) -> bool:
        if self._start is None:
            return line[:1] in (b" ", b"\t")
        text = line.decode(self._encoding, "replace")
        start = self._start.find(text) if isinstance(self._start, TimestampFormat) else self._start.search(text)
        return start is None

    def close_event(self) -> None:
        """Ends the open event, if there is one: it becomes one of `events`, or is filtered out."""
        if self.pending is None:
            return
        (raw, inode, offset), self.pending = self.pending, None
        if len(raw) > _EVENT_BYTES:
            raw = raw[: _EVENT_BYTES - len(_TRUNCATED)] + _TRUNCATED
        text = raw.decode(self._encoding, "replace").rstrip("\r\n")
        if not text or not self._passes(text):
            self.skipped = (inode, offset)
            return
        if not self.events:
            self.since = time.monotonic()
        self.events.append((self._time_of(text), text, inode, offset))

    def _passes(self, text: str) -> bool:
        return all((pattern.search(text) is not None) == (kind == "include") for kind, pattern in self._filters)

    def _time_of(self, text: str) -> int:
        seconds = self._format.find(text) if self._format else None
        if seconds is not None:
            self._last_time = int(seconds * 1000)
        elif self._format is None or not self._last_time:
            return int(time.time() * 1000)
        return self._last_time


class Logs:
    """Runs the logs section in a thread of its own."""

    def __init__(
        self,
        logs: Section,
        service: Service,
        names: Callable[[str], str],
        state_folder: str,
        journal: Journal,
        stop: threading.Event,
    ) -> None:
        self._service, self._journal, self._stop, self._names, self._state = service, journal, stop, names, state_folder
        self._flush_every = get_number(logs, "force_flush_interval", _DEFAULT_FLUSH)
        collected = get_items(get_section(logs, "logs_collected", "files"), "collect_list")
        self._entries: list[Section] = [entry for entry in collected if isinstance(entry, dict)]
        self.streams: dict[tuple[int, str], Stream] = {}

    def run(self) -> None:
        while not self._stop.is_set():
            self.step()
            self._stop.wait(_POLL_SECONDS)
        for stream in self.streams.values():
            stream.read()
            stream.close_event()
            self._publish(stream, last=True)

    def step(self) -> None:
        """One iteration: finds new files, reads new lines, sends what is due."""
        for number, entry in enumerate(self._entries):
            for path in self._paths(get_text(entry, "file_path")):
                if (number, path) not in self.streams:
                    self.streams[number, path] = Stream(entry, path, self._names, self._state)
                    self._journal.info(f"[inputs.logfile] Reading from {path}")
        for stream in self.streams.values():
            stream.read()
            size = sum(len(event[1]) + 26 for event in stream.events)
            full = size >= _BATCH_BYTES or len(stream.events) >= _BATCH_EVENTS
            if stream.events and (full or time.monotonic() - stream.since >= self._flush_every):
                self._publish(stream)

    @staticmethod
    def _paths(pattern: str) -> list[str]:
        if not glob.has_magic(pattern):
            return [pattern] if os.path.exists(pattern) else []
        paths = sorted(
            (path for path in glob.glob(pattern, recursive=True) if os.path.isfile(path)), key=os.path.getmtime
        )
        return paths[-1:]  # only the newest, as the agent without publish_multi_logs

    def _publish(self, stream: Stream, *, last: bool = False) -> None:
        while stream.events:
            batch = batch_of(stream.events)
            try:
                self._put(stream, batch, last)
            except ServiceError as error:
                self._journal.error(
                    f"[outputs.cloudwatchlogs] {len(batch)} events of {stream.tail.path} dropped: {error}"
                )
            except Stopping as error:
                self._journal.error(f"[outputs.cloudwatchlogs] {stream.tail.path}: {error}")
                return  # the saved offset is unchanged: the next start sends them again
            del stream.events[: len(batch)]
            stream.tail.save(batch[-1][2], batch[-1][3])
        if stream.skipped:
            stream.tail.save(*stream.skipped)
            stream.skipped = None

    def _put(self, stream: Stream, batch: list[Event], last: bool) -> None:
        if not stream.ready:
            self._create(stream, last)
        events = [
            {"timestamp": stamp, "message": text} for stamp, text, _, _ in sorted(batch, key=lambda event: event[0])
        ]
        request: dict[str, object] = {
            "logGroupName": stream.group, "logStreamName": stream.stream, "logEvents": events,
        }  # fmt: skip
        try:
            self._call("PutLogEvents", request, last)
        except ServiceError as error:
            if error.code != "ResourceNotFoundException":
                raise
            self._create(stream, last)  # it has been deleted
            self._call("PutLogEvents", request, last)

    def _create(self, stream: Stream, last: bool) -> None:
        group: dict[str, object] = {"logGroupName": stream.group}
        if self._unless_there(
            "CreateLogGroup", {**group, "logGroupClass": stream.group_class} if stream.group_class else group, last
        ):
            self._journal.info(f"[outputs.cloudwatchlogs] created log group {stream.group}")
        if stream.retention > 0:
            self._call("PutRetentionPolicy", {**group, "retentionInDays": stream.retention}, last)
        if self._unless_there("CreateLogStream", {**group, "logStreamName": stream.stream}, last):
            self._journal.info(f"[outputs.cloudwatchlogs] created log stream {stream.group}/{stream.stream}")
        stream.ready = True

    def _unless_there(self, action: str, request: dict[str, object], last: bool) -> bool:
        try:
            self._call(action, request, last)
        except ServiceError as error:
            if error.code != "ResourceAlreadyExistsException":
                raise
            return False
        return True

    def _call(self, action: str, request: dict[str, object], last: bool) -> None:
        self._service.call(
            "application/x-amz-json-1.1", json.dumps(request).encode(), f"Logs_20140328.{action}", last=last
        )


def batch_of(events: list[Event]) -> list[Event]:
    """The first events that fit into one PutLogEvents: count, bytes, and 24 hours from the earliest to the latest."""
    size, low, high = 0, events[0][0], events[0][0]
    for count, (stamp, text, _, _) in enumerate(events):
        low, high = min(low, stamp), max(high, stamp)
        size += len(text.encode()) + 26
        if count and (size > _BATCH_BYTES or count >= _BATCH_EVENTS or high - low > _BATCH_SPAN_MS):
            return events[:count]
    return list(events)
