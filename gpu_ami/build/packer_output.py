"""Reads Packer's -machine-readable output (`time,target,type,data…`): progress, log, and the reason of a failure."""

from __future__ import annotations

import re
import time
from collections import deque
from collections.abc import Callable
from typing import IO

from gpu_ami.build.ansible import Play, is_failure

_TAIL_LINES = 40
_ESCAPES = {"%!(PACKER_COMMA)": ",", "\\n": "\n", "\\r": ""}
_HEAD = re.compile(r"^(?:==>|-->)?\s*(?:[\w.-]+\.[\w-]+):\s?")
_BUILDER = re.compile(r"^Instance ID: (?P<id>i-[0-9a-f]+)$")
# In the log only: as progress they would hide the stages.
_DETAIL = re.compile(r"^(?:\s|Adding tag: |==> |AMIs were created|No volumes to clean up)")


class Reader:
    """Reads lines as they come. `note` gets stages and slow tasks, `log` everything with the seconds since the start.

    on_builder: called with the builder's instance id; on_task: with number and name of each Ansible task that starts.
    play: the Ansible run within the build.
    """

    def __init__(
        self,
        log: IO[str],
        note: Callable[[str], None],
        on_builder: Callable[[str], None] | None = None,
        on_task: Callable[[int, str], None] | None = None,
    ) -> None:
        self._log, self._note, self._on_builder = log, note, on_builder
        self._started = time.monotonic()
        self._last: deque[str] = deque(maxlen=_TAIL_LINES)
        self._packer_errors: list[str] = []
        self.play = Play(note, on_task)

    def line(self, raw: str) -> None:
        """One line of Packer's output; a line that is not a record (a panic) is kept as it is."""
        kind, text = _record(raw)
        if kind in ("say", "message", "error", "plain"):
            lines = [_HEAD.sub("", line.rstrip(), count=1) for line in text.split("\n")]
            for line in lines:
                self._read(kind, line)
            first = next((line for line in lines if line.strip()), "")
            if kind == "error" and first and not is_failure(first):  # what Ansible writes to stderr is an "error", too
                self._packer_errors.append(" ".join(" ".join(lines).split()))

    def end(self) -> None:
        """Packer has ended; closes the last task."""
        self.play.end()

    @property
    def reason(self) -> str:
        """The sentence that says best why the build failed.

        A failed task comes first. Where Ansible has finished without a failure, only what Packer reported counts: lines
        such as mitogen's `[ERROR]: [mux …]`, which it logs while it closes connections, did not stop the build.
        """
        if self.play.failed and self.play.failures:
            return self.play.failures[0]
        # Packer repeats a builder's error in its summary, "Build '…' errored after …"; the first one is the cause.
        reason = next(iter(self._packer_errors), "Packer exited without an error message")
        # "failed to handshake": why is what Ansible says of the host that it could not reach.
        return f"{reason}: {self.play.failures[0]}" if self.play.lost and self.play.failures else reason

    def tail(self) -> list[str]:
        """The last lines, as a person reads them."""
        return list(self._last)

    def _read(self, kind: str, text: str) -> None:
        if not text.strip():
            return
        self._log.write(f"{time.monotonic() - self._started:8.1f}  {text}\n")
        self._log.flush()
        self._last.append(text)
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
