"""Progress on stderr: nested stages with their times.

On a terminal, rich shows the running stages live (`gpu_ami.terminal`); elsewhere there is one line a step, or JSON
lines for machines. `times` keeps every finished stage for the report.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import IO, Literal, NotRequired, Protocol, TypedDict

from gpu_ami import foreign_text


@dataclass
class Stage:
    """A running stage. level: depth of nesting; started: monotonic seconds; step, total: 0 where unknown.

    machine: name in the report of the machine that this stage belongs to; "" for none. after: the stage whose end
    it waited for: the one before it of its machine, or of its thread; "" for the first inside another one. last: the
    stage inside it that ended last.
    """

    name: str
    level: int
    started: float
    text: str = ""
    step: int = 0
    total: int = 0
    red: int = 0
    machine: str = ""
    after: str = ""
    last: str = ""


class Display(Protocol):
    """Shows running stages on a terminal, and finished lines above them."""

    def begin(self, stage: Stage) -> None: ...
    def end(self, stage: Stage) -> None: ...
    def line(self, text: str, kind: str) -> None: ...
    def close(self) -> None: ...


class ProgressLine(TypedDict):
    """A line on stderr under --json, unless --quiet. seconds: how long what ended took. machine, after: of a stage of a
    machine of several, and the stage that it follows."""

    event: Literal["start", "note", "done", "failed"]
    text: str
    level: int
    seconds: NotRequired[float]
    machine: NotRequired[str]
    after: NotRequired[str]


@dataclass
class Progress:
    """One run's progress. Thread-safe: hosts are proved side by side.

    mode: "plain" (a line a step), "terminal" (live, on `display`), "json" (one object a line), "quiet".
    times: of every finished stage, in order, for the report: its machine, the stage it waited for (Stage.after), its
    start since the run began, and how long it took (s).
    """

    mode: str = "plain"
    stream: IO[str] = field(default_factory=lambda: sys.stderr)
    display: Callable[[IO[str]], Display] | None = None
    times: list[dict[str, object]] = field(default_factory=list)
    began: float = field(default_factory=time.monotonic)
    _current: threading.local = field(default_factory=threading.local)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _last: dict[str, str] = field(default_factory=dict)  # machine, or "" for the run → its stage that ended last
    _display: Display | None = None

    @contextmanager
    def stage(self, name: str, machine: str = "") -> Iterator[None]:
        """Times what happens inside and reports its outcome. Stages of one thread nest, of the same machine."""
        outer = self._stage()
        level = outer.level + 1 if outer else 0
        machine = machine or (outer.machine if outer else "")
        after = self._after(outer, machine)
        stage = Stage(name, level, time.monotonic(), machine=machine, after=after)
        self._begin(stage)
        outcome = "failed"
        try:
            yield
            outcome = "done"
        finally:
            self._current.stage = outer
            self._end(stage, outcome)

    def note(self, text: str) -> None:
        """One line of news inside the current stage."""
        stage = self._stage()
        self._say("note", text, stage.level + 1 if stage else 0)

    def update(self, text: str = "", *, step: int = 0, total: int = 0, red: int = 0) -> None:
        """What the current stage of this thread does now: step n of total, red ones among them. Shown live only."""
        if stage := self._stage():
            stage.text, stage.step, stage.total, stage.red = foreign_text.printed(text), step, total, red

    def close(self) -> None:
        """Leaves the terminal as it was, whatever still runs."""
        if self._display:
            self._display.close()

    def _stage(self) -> Stage | None:
        return getattr(self._current, "stage", None)

    def _after(self, outer: Stage | None, machine: str) -> str:
        """The stage that one which begins now has waited for."""
        if outer:
            return outer.last
        of_the_run = self._last.get("", "")
        return self._last.get(machine, of_the_run) if machine else getattr(self._current, "last", of_the_run)

    def _note_end(self, stage: Stage) -> None:
        if outer := self._stage():
            outer.last = stage.name
        elif stage.machine:
            self._last[stage.machine] = stage.name
        else:
            self._current.last = self._last[""] = stage.name

    def _begin(self, stage: Stage) -> None:
        self._current.stage = stage
        if self.mode == "terminal":
            with self._lock:
                self._terminal().begin(stage)
        else:
            self._say("start", stage.name, stage.level, machine=stage.machine, after=stage.after)

    def _end(self, stage: Stage, outcome: str) -> None:
        seconds = round(time.monotonic() - stage.started, 2)
        start = round(stage.started - self.began, 2)
        named = {"stage": stage.name, "machine": stage.machine, "after": stage.after, "level": stage.level}
        ended = named | {"start": start, "seconds": seconds, "outcome": outcome}
        with self._lock:
            self._note_end(stage)
            self.times.append(ended)
            if self.mode == "terminal":
                self._terminal().end(stage)
        self._say(outcome, stage.name, stage.level, seconds)

    def _terminal(self) -> Display:
        if self._display is None:
            if self.display is None:
                raise ValueError("mode terminal needs a display")
            self._display = self.display(self.stream)
        return self._display

    def _say(self, kind: str, text: str, level: int, seconds: float | None = None, **more: str) -> None:
        if self.mode == "quiet":
            return
        if self.mode == "json":
            record = {
                "event": kind,
                "text": text,
                "level": level,
                **{key: value for key, value in more.items() if value},
            }
            line = foreign_text.json_text(record if seconds is None else record | {"seconds": seconds})
        else:
            mark = {"start": "▸", "done": "✓", "failed": "✗", "note": "·"}[kind]
            line = (
                "  " * level
                + f"{mark} {foreign_text.printed(text)}"
                + ("" if seconds is None else f"  ({seconds:.1f} s)")
            )
        with self._lock:
            if self.mode == "terminal":
                self._terminal().line(line, kind)
            else:
                print(line, file=self.stream, flush=True)
