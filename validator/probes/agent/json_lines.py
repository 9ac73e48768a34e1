"""Line numbers of the values in a JSON document, and its duplicate keys."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

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
