"""Findings of the CloudWatch agent linter, and the rules that several sections share."""

from __future__ import annotations

import difflib
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass

ERROR, WARNING = "error", "warning"
_MAX_SECONDS = 172_800  # schema.json: metrics_collection_interval, force_flush_interval
_MAX_URL = 2048


@dataclass(frozen=True)
class Finding:
    """A defect of a configuration: an "error" (agent or service reject it or ignore a part) or a "warning".

    path: the key ("logs.logs_collected.…"); "" for the whole file. line: its line, if the text was read.
    """

    severity: str
    path: str
    message: str
    line: int | None = None

    def __str__(self) -> str:
        place = f"line {self.line}: " if self.line is not None else ""
        return f"{self.severity}: {place}{self.path or 'the file'}: {self.message}"


def unknown_keys(section: Mapping[str, object], known: Collection[str], where: str) -> Iterator[Finding]:
    for key in section:
        if key not in known:
            path = f"{where}.{key}" if where else str(key)
            yield Finding(ERROR, path, f"unknown key{suggestion(str(key), known)}")


def seconds(section: Mapping[str, object], key: str, where: str) -> Iterator[Finding]:
    value = section.get(key, 1)
    if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MAX_SECONDS:
        yield Finding(ERROR, f"{where}.{key}", f"expected whole seconds from 1 to {_MAX_SECONDS}, got {value!r}")


def endpoint(section: Mapping[str, object], where: str) -> Iterator[Finding]:
    value = section.get("endpoint_override", "http://x")
    if not isinstance(value, str) or not re.fullmatch(r"https?://[^/\s]+\S*", value) or len(value) > _MAX_URL:
        yield Finding(ERROR, f"{where}.endpoint_override", f"expected http(s)://host[:port], got {value!r}")


def not_an_object(where: str, value: object) -> Finding:
    return Finding(ERROR, where, f"expected an object, got {type(value).__name__}")


def suggestion(word: str, known: Collection[str]) -> str:
    """`; did you mean …?`, or "" if no known word is similar."""
    close = difflib.get_close_matches(word, list(known), n=1)
    return f"; did you mean {close[0]}?" if close else ""
