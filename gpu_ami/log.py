"""Progress on stderr: nested stages with their times; plain lines where nobody watches; JSON lines for machines."""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO


@dataclass
class Progress:
    """One run's progress. Thread-safe: hosts are proved side by side.

    mode: "plain" (a line a step), "terminal" (the same with colour), "json" (one object a line), "quiet".
    times: of every finished stage, in order, for the report: its start since the run began, and how long it took (s).
    """

    mode: str = "plain"
    stream: IO[str] = field(default_factory=lambda: sys.stderr)
    times: list[dict[str, object]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _depth: threading.local = field(default_factory=threading.local)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        """Times what happens inside and says how it ended."""
        level = getattr(self._depth, "level", 0)
        started = time.monotonic()
        self._say("start", name, level)
        self._depth.level = level + 1
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            self._depth.level = level
            seconds = round(time.monotonic() - started, 2)
            start, ended = round(started - self.began, 2), {"seconds": seconds, "outcome": outcome}
            with self._lock:
                self.times.append({"stage": name, "level": level, "start": start} | ended)
            self._say(outcome, name, level, seconds)

    def note(self, text: str) -> None:
        """One line of news inside the current stage."""
        self._say("note", text, getattr(self._depth, "level", 0))

    def _say(self, kind: str, text: str, level: int, seconds: float | None = None) -> None:
        if self.mode == "quiet":
            return
        if self.mode == "json":
            record = {"event": kind, "text": text, "level": level}
            line = json.dumps(record if seconds is None else record | {"seconds": seconds}, ensure_ascii=False)
        else:
            mark = {"start": "▸", "done": "✓", "failed": "✗", "note": "·"}[kind]
            line = "  " * level + f"{mark} {text}" + ("" if seconds is None else f"  ({seconds:.1f} s)")
            if self.mode == "terminal":
                line = {"done": "\x1b[32m", "failed": "\x1b[31m", "note": "\x1b[2m"}.get(kind, "") + line + "\x1b[0m"
        with self._lock:
            print(line, file=self.stream, flush=True)
