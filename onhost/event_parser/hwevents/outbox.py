"""The queue between the reader and the disk.

The reader never waits for a disk. Batches that cannot be written stay here and are tried again, up to a limit; what
exceeds it is counted as dropped. A batch's cursor is saved together with the intent to write its bytes, so a restart
repeats nothing.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from .sinks import FileSink
from .state import StateFile

_CHUNK = 256 * 1024
CAPACITY = 8 * 1024 * 1024
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 30.0


class Batch:
    """Lines of one read, and the cursor that holds once they are on disk."""

    def __init__(self, raw: List[bytes], lines: List[bytes], cursor: Dict[str, Any]) -> None:
        self.raw = b"".join(raw)
        self.json = b"".join(lines)
        self.count = len(raw) + len(lines)
        self.cursor = cursor


class Outbox:
    """Writes batches to the two sinks in order, exactly once. `report(text)` writes to the journal."""

    def __init__(self, raw: FileSink, lines: FileSink, state: StateFile, report: Callable[[str], None]) -> None:
        self.raw = raw
        self.lines = lines
        self.state = state
        self.report = report
        self.errors = 0
        self.dropped = 0
        self.retry_at = None  # type: Optional[float]
        self.saved_cursor = {}  # type: Dict[str, Any]
        self._queue = deque()  # type: Deque[Batch]
        self._queued = 0
        self._wait = _FIRST_RETRY_S
        self._complaint = ""

    @property
    def backlog(self) -> int:
        """Bytes that are not on disk yet."""
        return self._queued + len(self.raw.pending) + len(self.lines.pending)

    def recover(self, state: Dict[str, Any], now: float) -> int:
        """Completes the intent of the previous process, now or when the disk allows it. Returns the number of missing bytes."""
        intent = state.get("intent") or {}
        missing = 0
        for sink, sink_intent in ((self.raw, intent.get("raw")), (self.lines, intent.get("json"))):
            try:
                missing += sink.recover(sink_intent)
            except OSError as error:
                self._failed(error, now)
        self.commit(now)
        return missing

    def put(self, batch: Batch) -> None:
        size = len(batch.raw) + len(batch.json)
        if self._queue and self._queued + size > CAPACITY:
            self.dropped += batch.count
            self._queue[-1].cursor = _frozen(batch.cursor)
            return
        if self._queue:  # it has to wait, and the tracker's memory in its cursor changes meanwhile
            batch.cursor = _frozen(batch.cursor)
        self._queue.append(batch)
        self._queued += size

    def commit(self, now: float) -> bool:
        """Writes the whole queue; False if the disk refuses (then `retry_at` is set)."""
        if self.retry_at is not None and now < self.retry_at:
            self._freeze_last()
            return False
        try:
            self._flush()
            while self._queue:
                self._write_chunk()
        except OSError as error:
            self._failed(error, now)
            return False
        if self._complaint:
            self.report("the log files are writable again; all waiting events were written")
        self._complaint, self.retry_at, self._wait = "", None, _FIRST_RETRY_S
        return True

    def save_cursor(self, cursor: Dict[str, Any], durable: bool, now: float) -> None:
        """Moves the checkpoint over records without events. Does nothing while batches wait."""
        if self.backlog:
            return
        try:
            self.state.save(dict(cursor), durable)
            self.saved_cursor = cursor
        except OSError as error:
            self._failed(error, now)

    def sync(self, now: float) -> None:
        try:
            self.raw.sync()
            self.lines.sync()
        except OSError as error:
            self._failed(error, now)

    def _write_chunk(self) -> None:
        raw, lines, taken, size = [], [], 0, 0
        for batch in self._queue:
            raw.append(batch.raw)
            lines.append(batch.json)
            taken += 1
            size += len(batch.raw) + len(batch.json)
            if size >= _CHUNK:
                break
        cursor = self._queue[taken - 1].cursor
        self.raw.open()
        self.lines.open()
        data_raw, data_lines = b"".join(raw), b"".join(lines)
        document = dict(cursor)
        document["intent"] = {"raw": self.raw.intent(data_raw), "json": self.lines.intent(data_lines)}
        self.state.save(document)
        self.saved_cursor = cursor
        self.raw.pending, self.lines.pending = data_raw, data_lines
        for _ in range(taken):
            self._queue.popleft()
        self._queued -= size
        self._flush()

    def _flush(self) -> None:
        """The raw log first. An error of one file does not delay the other."""
        first_error = None  # type: Optional[OSError]
        for sink in (self.raw, self.lines):
            try:
                sink.flush()
            except OSError as error:
                first_error = first_error or error
        if first_error is not None:
            raise first_error

    def _freeze_last(self) -> None:
        if self._queue:
            self._queue[-1].cursor = _frozen(self._queue[-1].cursor)

    def _failed(self, error: OSError, now: float) -> None:
        self.errors += 1
        self._freeze_last()
        self.retry_at = now + self._wait
        self._wait = min(self._wait * 2, _LAST_RETRY_S)
        complaint = "cannot write %s: %s" % (error.filename or "the log files", error.strerror)
        if complaint != self._complaint:  # once for each cause, not for each attempt
            self.report(complaint + "; events stay in memory until it can be written")
            self._complaint = complaint


def _frozen(cursor: Dict[str, Any]) -> Dict[str, Any]:
    return json.loads(json.dumps(cursor))  # type: ignore[no-any-return]
