"""The linter's findings, with the lines of their values in a JSON document, its duplicate keys, and shared rules.

And what the agent's own check of its configuration refuses: keys, types, bounds and values (release_schema.yml). The
agent does not start with a file that its check refuses. The linter's other rules are stricter, and name what the
service does.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from onhost.agent_schema import Schema, suggestion

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


_SPACE = re.compile(r"[ \t\n\r]*")
_DECODER = json.JSONDecoder()


@dataclass
class Lines:
    """Path of a value ("logs.files[0].file_path", "" for the document) to the line of its key or its beginning."""

    by_path: dict[str, int] = field(default_factory=dict)
    duplicates: dict[str, int] = field(default_factory=dict)  # path of a key to the line where it occurs again

    def nearest(self, path: str) -> int | None:
        """The line of a path, or of the closest parent that has one."""
        while path not in self.by_path:
            if not path:
                return None
            path = path[: max(path.rfind("."), path.rfind("["), 0)]
        return self.by_path[path]


def line_numbers(text: str) -> Lines:
    """The lines of a document that `json.loads` accepts."""
    lines = Lines()
    _value(text, _skip(text, 0), "", lines)
    return lines


def _value(text: str, position: int, path: str, lines: Lines) -> int:
    lines.by_path.setdefault(path, _line(text, position))
    if text[position] == "{":
        return _object(text, position, path, lines)
    if text[position] == "[":
        return _array(text, position, path, lines)
    return _DECODER.raw_decode(text, position)[1]


def _object(text: str, position: int, path: str, lines: Lines) -> int:
    keys: set[str] = set()
    position = _skip(text, position + 1)
    while text[position] != "}":
        line = _line(text, position)
        key, position = _DECODER.raw_decode(text, position)
        child = f"{path}.{key}" if path else key
        if key in keys:
            lines.duplicates[child] = line
        keys.add(key)
        lines.by_path[child] = line
        position = _skip(text, _skip(text, position) + 1)  # past the colon
        position = _next(text, _value(text, position, child, lines))
    return position + 1


def _array(text: str, position: int, path: str, lines: Lines) -> int:
    index = 0
    position = _skip(text, position + 1)
    while text[position] != "]":
        position = _next(text, _value(text, position, f"{path}[{index}]", lines))
        index += 1
    return position + 1


def _next(text: str, position: int) -> int:
    position = _skip(text, position)
    return _skip(text, position + 1) if text[position] == "," else position


def _skip(text: str, position: int) -> int:
    space = _SPACE.match(text, position)
    return space.end() if space else position


def _line(text: str, position: int) -> int:
    return text.count("\n", 0, position) + 1


RELEASE_SCHEMA = Path(__file__).with_name("release_schema.yml")


@functools.cache
def release_schema() -> Schema:
    """The planned release's table."""
    return Schema(
        yaml.load(RELEASE_SCHEMA.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    )


def schema_findings(config: object) -> Iterator[Finding]:
    """Errors of what the release's check refuses, each at the key that it is about."""
    for path, message in release_schema().mistakes(config):
        dotted = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path)
        yield Finding(ERROR, dotted.removeprefix("."), message)


def retention_days() -> tuple[int, ...]:
    """The days for which the agent lets a log group keep its events; -1: it leaves the group as it is."""
    rule = release_schema().rule("logs", "logs_collected", "files", "collect_list", "[]", "retention_in_days")
    return tuple(rule["values"])
