"""Reads pytest's output (one verbosity above the default) while the checks run: how many are done, how many are red."""

from __future__ import annotations

import re
from dataclasses import dataclass

_COLLECTED = re.compile(
    r"^(?:collecting \.\.\. *)?collected (?P<items>\d+) items?\b.*?(?: (?P<selected>\d+) selected)?$"
)
_RESULT = re.compile(r"(?:^| )(?P<outcome>PASSED|FAILED|ERROR|SKIPPED|XFAIL|XPASS)\b.*\[ *\d+%\]$")


@dataclass
class CheckOutput:
    """total: 0 until pytest has collected."""

    done: int = 0
    total: int = 0
    red: int = 0

    def line(self, text: str) -> None:
        """Reads one line of output."""
        if collected := _COLLECTED.match(text):
            self.total = int(collected["selected"] or collected["items"])
        elif result := _RESULT.search(text):
            self.done += 1
            self.red += result["outcome"] in ("FAILED", "ERROR")
