"""Order of rpm versions: epoch, version and release, by the rules of rpm's rpmvercmp (docs/man/rpm-version.7)."""

from __future__ import annotations

import re

_SEGMENT = re.compile(r"\d+|[A-Za-z]+|~|\^")


def compare(first: str, second: str) -> int:
    """-1, 0 or 1 of two `[EPOCH:]VERSION[-RELEASE]`. Where one has no release, releases are not compared."""
    left, right = split(first), split(second)
    order = _numbers(left[0] or "0", right[0] or "0") or rpmvercmp(left[1], right[1])
    if order or not left[2] or not right[2]:
        return order
    return rpmvercmp(left[2], right[2])


def split(text: str) -> tuple[str, str, str]:
    """Epoch, version and release; empty where they are missing."""
    epoch, colon, rest = text.partition(":")
    if not colon:
        epoch, rest = "", text
    version, _, release = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return epoch, version, release


def _numbers(first: str, second: str) -> int:
    left, right = int(first), int(second)
    return (left > right) - (left < right)


def rpmvercmp(first: str, second: str) -> int:
    """Segments of digits or letters are compared in turn; digits are newer than letters; `~` is older than the end."""
    left_segments, right_segments = _SEGMENT.findall(first), _SEGMENT.findall(second)
    for index in range(max(len(left_segments), len(right_segments))):
        left = left_segments[index] if index < len(left_segments) else ""
        right = right_segments[index] if index < len(right_segments) else ""
        if left == right:
            continue
        if "~" in (left, right):
            return -1 if left == "~" else 1
        if not left or not right:  # the longer is newer; but a `^` only against the end
            return 1 if left else -1
        if "^" in (left, right):
            return -1 if left == "^" else 1
        if left.isdigit() and right.isdigit():
            if order := _numbers(left, right):
                return order
            continue  # 01 and 1
        if left.isdigit() != right.isdigit():
            return 1 if left.isdigit() else -1
        return -1 if left < right else 1
    return 0
