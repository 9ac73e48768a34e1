"""What Packer prints with -machine-readable (`time,target,type,data…`) becomes progress, log and a failure's reason."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from typing import IO

_TAIL_LINES = 40
# Ansible's tasks that take longer than this are worth a line of progress.
_SLOW_SECONDS = 5.0
_ESCAPES = {"%!(PACKER_COMMA)": ",", "\\n": "\n", "\\r": ""}
_HEAD = re.compile(r"^(?:==>|-->)?\s*(?:[\w.-]+\.[\w-]+):\s?")
_TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(?P<name>.+?)\] \**$")
_BUILDER = re.compile(r"^Instance ID: (?P<id>i-[0-9a-f]+)$")
# Kept in the log; as progress they would hide the stages among them.
_DETAIL = re.compile(r"^(?:\s|Adding tag: |==> |AMIs were created|No volumes to clean up)")
# The word that Ansible puts before what went wrong, and the marker of its last line.
_FAILED = re.compile(r"^(?:fatal|failed): \[|^\[ERROR\]|^ERROR!")


class Reader:
    """Reads lines as they come. `note` gets stages and slow tasks, `log` everything with the seconds since the start.

    on_builder: called with the builder's instance id.
    """

    def __init__(
        self, log: IO[str], note: Callable[[str], None], on_builder: Callable[[str], None] | None = None
    ) -> None:
        self._log, self._note, self._on_builder = log, note, on_builder
        self._started = time.monotonic()
        self._task: tuple[str, float] | None = None
        self._last: deque[str] = deque(maxlen=_TAIL_LINES)
        self._errors: list[str] = []
        self._playing = False  # Ansible speaks: current Packers say its lines as if they were their own

    def line(self, raw: str) -> None:
        """One line of Packer's output; what is no record (a crash of Packer's) is kept as it is."""
        kind, text = _record(raw)
        if kind in ("say", "message", "error", "plain"):
            for one in text.split("\n"):
                self._said(kind, _HEAD.sub("", one.rstrip(), count=1))

    def end(self) -> None:
        """Packer has ended; closes the last task."""
        self._task_ended()

    @property
    def reason(self) -> str:
        """The sentence that says best why it failed."""
        for line in self._errors:
            if _FAILED.match(line):
                return line
        return self._errors[0] if self._errors else "it did not say why"

    def tail(self) -> list[str]:
        """The last lines, as a person reads them."""
        return list(self._last)

    def _said(self, kind: str, text: str) -> None:
        if not text.strip():
            return
        self._log.write(f"{time.monotonic() - self._started:8.1f}  {text}\n")
        self._log.flush()
        self._last.append(text)
        if kind == "error" or _FAILED.match(text):
            self._errors.append(text)
        task, builder = _TASK.match(text), _BUILDER.match(text.strip())
        if task:
            self._task_ended()
            self._task = (task["name"], time.monotonic())
        elif text.startswith(("PLAY [", "PLAY RECAP")):
            self._task_ended()
            self._playing = text.startswith("PLAY [")
        elif kind == "say" and not self._playing and not _DETAIL.match(text):
            self._task_ended()
            self._note(text)
        if builder and self._on_builder:
            self._on_builder(builder["id"])

    def _task_ended(self) -> None:
        if self._task:
            name, started = self._task
            seconds = time.monotonic() - started
            self._task = None
            if seconds >= _SLOW_SECONDS:
                self._note(f"{name} ({seconds:.0f} s)")


def _record(raw: str) -> tuple[str, str]:
    """(kind, text) of one line: kind is say, message or error for what a person reads, else the record's own type."""
    fields = raw.split(",", 4)
    if len(fields) < 4 or not fields[0].isdigit():
        return "plain", raw
    text = ",".join(fields[4:]) if fields[2] == "ui" else ",".join(fields[3:])
    for escape, meant in _ESCAPES.items():
        text = text.replace(escape, meant)
    return (fields[3], text) if fields[2] == "ui" else (f"record {fields[2]}", text)
