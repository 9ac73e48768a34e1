"""What ansible-playbook prints becomes tasks, changes, times and failures, whether we started it or Packer did."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass

# A task that takes longer than this is worth a line of progress.
SLOW_SECONDS = 5.0
_SLOWEST = 5
_TASK = re.compile(r"^(?:TASK|RUNNING HANDLER) \[(?P<name>.+?)\] \**$")
_CHANGED = re.compile(r"^changed: \[")
_RECAP = re.compile(
    r"^\S+\s+: ok=(?P<ok>\d+)\s+changed=(?P<changed>\d+)\s+unreachable=(?P<lost>\d+)\s+failed=(?P<failed>\d+)"
)
# The word that it puts before what went wrong, and the marker of its last line.
_FAILED = re.compile(r"^(?:fatal|failed): \[|^\[ERROR\]|^ERROR!")


@dataclass(frozen=True)
class Converged:
    """How a run ended. ok: tasks that ran, changing something or not; changed: the names of those that did.

    slowest: (task, seconds), the longest first.
    """

    ok: int
    changed: tuple[str, ...]
    slowest: tuple[tuple[str, float], ...]
    seconds: float

    def text(self) -> str:
        """One line: `ok=58 changed=2 in 41.0 s`."""
        return f"ok={self.ok} changed={len(self.changed)} in {self.seconds:.1f} s"


class Play:
    """One run's output, line by line. `note` gets the tasks that are slow.

    playing: it has begun and not yet ended; failures: `task: what was said`; lost: hosts that could not be reached.
    """

    def __init__(self, note: Callable[[str], None] | None = None) -> None:
        self._note = note
        self._task, self._since = "", 0.0
        self._began = self._ended = time.monotonic()
        self._changed: list[str] = []
        self._times: dict[str, float] = {}
        self._recap: Mapping[str, str] | None = None
        self.playing = False
        self.failures: list[str] = []

    def line(self, text: str) -> bool:
        """Reads one line; says whether it is one of those by which Ansible divides what it says."""
        if task := _TASK.match(text):
            self._next(task["name"])
        elif text.startswith("PLAY [") and not self.playing:
            self._began, self.playing = time.monotonic(), True
        elif text.startswith("PLAY RECAP"):
            self._next("")
            self._ended, self.playing = time.monotonic(), False
        elif recap := _RECAP.match(text):
            self._recap = recap.groupdict()
        else:
            if _CHANGED.match(text) and self._task not in self._changed[-1:]:
                self._changed.append(self._task)
            elif is_failure(text):
                self.failures.append(f"{self._task}: {text}")
            return False
        return True

    def end(self) -> None:
        """Nothing more comes; closes the last task."""
        self._next("")

    @property
    def lost(self) -> bool:
        """Whether the host could not be reached."""
        return bool(self._recap and int(self._recap["lost"]))

    @property
    def converged(self) -> Converged | None:
        """How it ended; None if it did not come to its recap."""
        if self._recap is None:
            return None
        slowest = sorted(self._times.items(), key=lambda item: -item[1])[:_SLOWEST]
        rounded = tuple((name, round(seconds, 1)) for name, seconds in slowest)
        return Converged(int(self._recap["ok"]), tuple(self._changed), rounded, round(self._ended - self._began, 1))

    def _next(self, task: str) -> None:
        now = time.monotonic()
        if self._task:
            seconds = now - self._since
            self._times[self._task] = self._times.get(self._task, 0.0) + seconds
            if self._note and seconds >= SLOW_SECONDS:
                self._note(f"{self._task} ({seconds:.0f} s)")
        self._task, self._since = task, now


def is_failure(text: str) -> bool:
    """Whether this line is Ansible's own word for what went wrong."""
    return _FAILED.match(text) is not None
