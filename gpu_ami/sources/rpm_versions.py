"""Order of rpm versions: epoch, version and release, by the rules of rpm's rpmvercmp (docs/man/rpm-version.7)."""

from __future__ import annotations

import re

_SEGMENT = re.compile(r"\d+|[A-Za-z]+|~|\^")


def compare(first: str, second: str) -> int:
    """-1, 0 or 1 of two `[EPOCH:]VERSION[-RELEASE]`. Where one has no release, releases are not compared."""
    one, other = split(first), split(second)
    order = _numbers(one[0] or "0", other[0] or "0") or rpmvercmp(one[1], other[1])
    if order or not one[2] or not other[2]:
        return order
    return rpmvercmp(one[2], other[2])


def split(text: str) -> tuple[str, str, str]:
    """Epoch, version and release; empty where they are missing."""
    epoch, colon, rest = text.partition(":")
    if not colon:
        epoch, rest = "", text
    version, _, release = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return epoch, version, release


def _numbers(first: str, second: str) -> int:
    one, other = int(first), int(second)
    return (one > other) - (one < other)


def rpmvercmp(first: str, second: str) -> int:
    """Segments of digits or letters are compared in turn; digits are newer than letters; `~` is older than the end."""
    ours, theirs = _SEGMENT.findall(first), _SEGMENT.findall(second)
    for index in range(max(len(ours), len(theirs))):
        one = ours[index] if index < len(ours) else ""
        other = theirs[index] if index < len(theirs) else ""
        if one == other:
            continue
        if "~" in (one, other):
            return -1 if one == "~" else 1
        if not one or not other:  # the longer is newer; but a `^` only against the end
            return 1 if one else -1
        if "^" in (one, other):
            return -1 if one == "^" else 1
        if one.isdigit() and other.isdigit():
            if order := _numbers(one, other):
                return order
            continue  # 01 and 1
        if one.isdigit() != other.isdigit():
            return 1 if one.isdigit() else -1
        return -1 if one < other else 1
    return 0
