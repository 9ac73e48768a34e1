"""What a reader of a log leaves out, and what it read with a reservation: kind → lines. Nothing is dropped in silence."""

from __future__ import annotations

import re
from typing import Dict, List

from . import programs

QUOTED, BY_PROGRAM, UNREAD = "quoted", "by_program", "unread"
CUT, FORMAT, DRIVER, REPEATED, CONSEQUENCE, FOLLOW_UP = (
    "cut",
    "format",
    "driver",
    "repeated",
    "consequence",
    "follow_up",
)
OVERLONG, DRIVER_ERROR, PCIE, PROGRAM = "overlong", "driver_error", "pcie", "program_error"
_KEPT = 1000
# "Xid 79", "Xid: 79", "Xid=79", "XID error 79", and the driver's own form.
_NAMES_AN_EVENT = re.compile(r"\bS?X[Ii][Dd]\b(?:\s*[:(]|[\s=#]*(?:(?:error|code|event)s?\s*[:=#]?\s*)?\d{1,10}(?!\w))")
# What the driver says of a failure, in lines that are no event.
_FAILURE = re.compile(
    r"(?i)\b(?:fail(?:s|ed|ure|ures|ing)?|time(?:d)? ?-?out|timeouts?|errors?|cannot|can't|could not|unable|no NVIDIA|not called|"
    r"not responding|fallen|fatal|hang|hung|corrupt\w*|lost|invalid|mismatch|storm|aborting|ignoring|unavailable|crash\w*|locked|"
    r"panic|None of the NVIDIA|another driver|not initialized|power cables|conflicting)\b|[a-z]Timeout|TimedOut|[a-z](?:Error|Failed)"
)
# The text of /proc/driver/nvidia/version, and a command that a person typed and pasted with its output: no message.
_NO_MESSAGE = re.compile(
    r"\s*(?:NVRM version:|(?:[\w.-]+@[\w.-]+:\S*|\[[\w.-]+@[\w.-]+ \S+\])?\s?[#$] (?:sudo )?(?:dmesg|journalctl|z?e?grep|cat)\b)"
)


class LeftOut:
    """Counts, and the numbers of the first lines of each kind."""

    def __init__(self) -> None:
        self.counts = {}  # type: Dict[str, int]
        self.lines = {}  # type: Dict[str, List[int]]

    def add(self, kind: str, number: int) -> None:
        self.counts[kind] = self.counts.get(kind, 0) + 1
        kept = self.lines.setdefault(kind, [])
        if len(kept) < _KEPT:
            kept.append(number)

    def add_unread(self, text: str, number: int) -> None:
        """A line in which no kernel line was found."""
        if _NO_MESSAGE.match(text):
            return
        if _NAMES_AN_EVENT.search(text):
            self.add(BY_PROGRAM, number)
        elif programs.reports_failure(text):
            self.add(PROGRAM, number)
        elif "NVRM" in text or "SXid" in text:
            self.add(UNREAD, number)

    def add_switch(self, text: str, number: int) -> None:
        """A line of the NVSwitches' driver that is no SXid: it prints one for each program that opens a switch, too."""
        if _FAILURE.search(text):
            self.add(DRIVER_ERROR, number)

    def add_driver(self, text: str, number: int) -> None:
        """A line of the driver that is no event."""
        self.add(DRIVER_ERROR if _FAILURE.search(text) else DRIVER, number)
