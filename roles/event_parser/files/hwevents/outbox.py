"""Between the reader and the disk: batches that are promised, written, and only then forgotten.

The reader never waits for a disk. What cannot be written stays here, bounded, and is tried again; what the bound
pushes out is counted. A batch's cursor is saved with the promise of its bytes, so a restart repeats nothing.
"""

from __future__ import annotations

import json
from collections import deque
from typing import Any, Callable, Deque, Dict, List, Optional

from .sinks import FileSink
from .state import StateFile

_CHUNK = 256 * 1024
_CAPACITY = 8 * 1024 * 1024
_FIRST_RETRY_S = 1.0
_LAST_RETRY_S = 30.0


class Batch:
    """Lines of one reading, and the cursor that is true once they are on disk."""

    def __init__(self, raw: List[bytes], lines: List[bytes], cursor: Dict[str, Any]) -> None:
        self.raw = b"".join(raw)
        self.json = b"".join(lines)
        self.count = len(raw) + len(lines)
        self.cursor = cursor


class Outbox:
    """Takes batches in order and brings them to the two sinks exactly once. `report(text)` tells the journal."""

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
        """Completes what the process before us had promised, now or when the disk lets us; the missing bytes' number."""
        intent = state.get("intent") or {}
        missing = 0
        for sink, promised in ((self.raw, intent.get("raw")), (self.lines, intent.get("json"))):
            try:
                missing += sink.recover(promised)
            except OSError as error:
                self._failed(error, now)
        self.commit(now)
        return missing

    def put(self, batch: Batch) -> None:
        size = len(batch.raw) + len(batch.json)
        if self._queue and self._queued + size > _CAPACITY:
            self.dropped += batch.count
            self._queue[-1].cursor = _frozen(batch.cursor)
            return
        if self._queue:  # it will wait: what its cursor refers to goes on changing
            batch.cursor = _frozen(batch.cursor)
        self._queue.append(batch)
        self._queued += size

    def commit(self, now: float) -> bool:
        """Writes all that is queued; False when the disk refuses (see `retry_at`)."""
        if self.retry_at is not None and now < self.retry_at:
            self._freeze_first()
            return False
        try:
            self._flush()
            while self._queue:
                self._write_chunk()
        except OSError as error:
            self._failed(error, now)
            return False
        if self._complaint:
            self.report("the log files are writable again; nothing is left waiting")
        self._complaint, self.retry_at, self._wait = "", None, _FIRST_RETRY_S
        return True

    def save_cursor(self, cursor: Dict[str, Any], durable: bool, now: float) -> None:
        """Moves the checkpoint over records that left nothing to write. Only when nothing waits."""
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
        document["intent"] = {"raw": self.raw.promise(data_raw), "json": self.lines.promise(data_lines)}
        self.state.save(document)
        self.saved_cursor = cursor
        self.raw.pending, self.lines.pending = data_raw, data_lines
        for _ in range(taken):
            self._queue.popleft()
        self._queued -= size
        self._flush()

    def _flush(self) -> None:
        """Raw first: the old system's readers see no later than before. A refusal of one file does not hold up the other."""
        refusal = None  # type: Optional[OSError]
        for sink in (self.raw, self.lines):
            try:
                sink.flush()
            except OSError as error:
                refusal = refusal or error
        if refusal is not None:
            raise refusal

    def _freeze_first(self) -> None:
        if self._queue:
            self._queue[-1].cursor = _frozen(self._queue[-1].cursor)

    def _failed(self, error: OSError, now: float) -> None:
        self.errors += 1
        self._freeze_first()
        self.retry_at = now + self._wait
        self._wait = min(self._wait * 2, _LAST_RETRY_S)
        complaint = "cannot write %s: %s" % (error.filename or "the log files", error.strerror)
        if complaint != self._complaint:  # once for each cause, not once for each attempt
            self.report(complaint + "; events are kept in memory and tried again")
            self._complaint = complaint


def _frozen(cursor: Dict[str, Any]) -> Dict[str, Any]:
    return json.loads(json.dumps(cursor))  # type: ignore[no-any-return]
