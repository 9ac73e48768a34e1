"""What Packer prints with -machine-readable (`time,target,type,data…`) becomes progress, log and a failure's reason."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from typing import IO

from gpu_ami.ansible_output import Play, is_failure

_TAIL_LINES = 40
_ESCAPES = {"%!(PACKER_COMMA)": ",", "\\n": "\n", "\\r": ""}
_HEAD = re.compile(r"^(?:==>|-->)?\s*(?:[\w.-]+\.[\w-]+):\s?")
_BUILDER = re.compile(r"^Instance ID: (?P<id>i-[0-9a-f]+)$")
# Kept in the log; as progress they would hide the stages among them.
_DETAIL = re.compile(r"^(?:\s|Adding tag: |==> |AMIs were created|No volumes to clean up)")


class Reader:
    """Reads lines as they come. `note` gets stages and slow tasks, `log` everything with the seconds since the start.

    on_builder: called with the builder's instance id. play: what Ansible said.
    """

    def __init__(
        self, log: IO[str], note: Callable[[str], None], on_builder: Callable[[str], None] | None = None
    ) -> None:
        self._log, self._note, self._on_builder = log, note, on_builder
        self._started = time.monotonic()
        self._last: deque[str] = deque(maxlen=_TAIL_LINES)
        self._errors: list[str] = []
        self.play = Play(note)

    def line(self, raw: str) -> None:
        """One line of Packer's output; what is no record (a crash of Packer's) is kept as it is."""
        kind, text = _record(raw)
        if kind in ("say", "message", "error", "plain"):
            for one in text.split("\n"):
                self._said(kind, _HEAD.sub("", one.rstrip(), count=1))

    def end(self) -> None:
        """Packer has ended; closes the last task."""
        self.play.end()

    @property
    def reason(self) -> str:
        """The sentence that says best why it failed."""
        for line in self._errors:
            if is_failure(line):
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
        if kind == "error" or is_failure(text):
            self._errors.append(text)
        playing = self.play.playing  # current Packers say Ansible's lines as if they were their own
        if not self.play.line(text) and kind == "say" and not playing and not _DETAIL.match(text):
            self.play.end()
            self._note(text)
        if (builder := _BUILDER.match(text.strip())) and self._on_builder:
            self._on_builder(builder["id"])


def _record(raw: str) -> tuple[str, str]:
    """(kind, text) of one line: kind is say, message or error for what a person reads, else the record's own type."""
    fields = raw.split(",", 4)
    if len(fields) < 4 or not fields[0].isdigit():
        return "plain", raw
    text = ",".join(fields[4:]) if fields[2] == "ui" else ",".join(fields[3:])
    for escape, meant in _ESCAPES.items():
        text = text.replace(escape, meant)
    return (fields[3], text) if fields[2] == "ui" else (f"record {fields[2]}", text)
