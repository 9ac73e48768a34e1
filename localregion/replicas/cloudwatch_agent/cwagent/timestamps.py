"""timestamp_format of a log file: finds and reads the time in a line."""

from __future__ import annotations

import calendar
import re
import time

_MONTHS = {
    name: number
    for number, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"), 1
    )
}
_DIRECTIVES = {
    "Y": r"(?P<Y>\d{4})",
    "y": r"(?P<y>\d{2})",
    "m": r"(?P<m>\d{1,2})",
    "d": r"(?P<d>\d{1,2})",
    "H": r"(?P<H>\d{1,2})",
    "I": r"(?P<I>\d{1,2})",
    "M": r"(?P<M>\d{2})",
    "S": r"(?P<S>\d{2})",
    "f": r"(?P<f>\d{1,9})",
    "p": r"(?P<p>AM|PM|am|pm)",
    "b": r"(?P<b>[A-Za-z]{3})",
    "B": r"(?P<B>[A-Za-z]+)",
    "a": r"[A-Za-z]{3}",
    "A": r"[A-Za-z]+",
    "z": r"(?P<z>Z|[+-]\d{2}:?\d{2})",
    "Z": r"(?P<Z>[A-Z]{3,4})",
    "%": "%",
}


class TimestampFormat:
    """UnknownDirective (ValueError) at once for what it cannot read."""

    def __init__(self, form: str, *, utc: bool) -> None:
        pattern, rest = "", form
        while rest:
            if rest[0] != "%":
                pattern, rest = pattern + re.escape(rest[0]), rest[1:]
                continue
            letter = rest[1:3].lstrip("-")[:1]
            if letter not in _DIRECTIVES:
                raise ValueError(f"timestamp_format {form!r}: unknown directive %{letter}")
            pattern, rest = pattern + _DIRECTIVES[letter], rest[rest.index(letter, 1) + 1 :]
        self._pattern = re.compile(pattern)
        self._utc = utc

    def find(self, line: str) -> float | None:
        """Seconds since the epoch of the first match; None if the line has no time."""
        match = self._pattern.search(line)
        if match is None:
            return None
        part = match.groupdict()
        today = time.gmtime() if self._utc else time.localtime()
        month = part.get("m") or _MONTHS.get((part.get("b") or part.get("B") or "")[:3].lower()) or today.tm_mon
        year = int(part["Y"]) if part.get("Y") else 2000 + int(part["y"]) if part.get("y") else today.tm_year
        hour = int(part.get("H") or part.get("I") or 0)
        if part.get("p"):
            hour = hour % 12 + (12 if part["p"].lower() == "pm" else 0)
        fields = (
            year,
            int(month),
            int(part.get("d") or today.tm_mday),
            hour,
            int(part.get("M") or 0),
            int(part.get("S") or 0),
            0,
            0,
            -1,
        )
        fraction = float("0." + part["f"]) if part.get("f") else 0.0
        zone = part.get("z")
        if zone:
            return calendar.timegm(fields) - _offset(zone) + fraction
        return (
            calendar.timegm(fields) if self._utc or part.get("Z") in ("UTC", "GMT") else time.mktime(fields)
        ) + fraction


def _offset(zone: str) -> int:
    if zone == "Z":
        return 0
    digits = zone[1:].replace(":", "")
    return (1 if zone[0] == "+" else -1) * (int(digits[:2]) * 3600 + int(digits[2:]) * 60)
