"""Filter patterns of JSON log events, as CloudWatch Logs' metric filters evaluate them.

Objects, strings, numbers, `&&`, `||` and parentheses: what this project's filters use. Source: CloudWatch Logs user
guide, "Filter pattern syntax for metric filters" (JSON log events), read 2026-11-22. `&&` binds more tightly than `||`.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

Test = Callable[[Mapping[str, Any]], bool]
_TOKEN = re.compile(r'\s*(?:(\(|\)|&&|\|\||!=|=)|"((?:[^"\\]|\\.)*)"|(\$(?:\.[\w@]+)+)|(-?\d+(?:\.\d+)?))')


def matches(pattern: str, message: str) -> bool:
    """Whether a log event matches. ValueError: the pattern is none for JSON, or uses what is not evaluated here."""
    test = _compiled(pattern)
    try:
        document = json.loads(message)
    except ValueError:
        return False
    return isinstance(document, Mapping) and test(document)


@functools.lru_cache
def _compiled(pattern: str) -> Test:
    inside = pattern.strip()
    if not (inside.startswith("{") and inside.endswith("}")):
        raise ValueError(f"not a pattern for JSON log events: {pattern}")
    parser = _Parser(inside[1:-1])
    test = parser.either()
    if parser.tokens:
        raise ValueError(f"unexpected {parser.tokens[0]!r} in {pattern}")
    return test


class _Parser:
    """Recursive descent; `tokens` are those that are left: punctuation, ("text", …), ("field", …), ("number", …)."""

    def __init__(self, text: str) -> None:
        self.tokens: list[Any] = []
        position = 0
        while text[position:].strip():
            match = _TOKEN.match(text, position)
            if match is None:
                raise ValueError(f"cannot be read: {text[position:].strip()}")
            mark, quoted, field, number = match.groups()
            kinds = (("text", quoted), ("field", field), ("number", number))
            self.tokens.append(mark or next((kind, value) for kind, value in kinds if value is not None))
            position = match.end()

    def either(self) -> Test:
        tests = [self._both()]
        while self._taken("||"):
            tests.append(self._both())
        return lambda document: any(test(document) for test in tests)

    def _both(self) -> Test:
        tests = [self._one()]
        while self._taken("&&"):
            tests.append(self._one())
        return lambda document: all(test(document) for test in tests)

    def _one(self) -> Test:
        if self._taken("("):
            inside = self.either()
            if not self._taken(")"):
                raise ValueError("expected ) in the pattern")
            return inside
        if len(self.tokens) < 3 or self.tokens[0][0] != "field" or self.tokens[1] not in ("=", "!="):
            raise ValueError(f"expected a comparison with = or !=, got {self.tokens[:3]}")
        (_, field), operator, (kind, value) = (self.tokens.pop(0) for _ in range(3))
        expected = value if kind == "text" else float(value)
        return functools.partial(_compare, field.split(".")[1:], operator == "=", expected)

    def _taken(self, mark: str) -> bool:
        if self.tokens[:1] != [mark]:
            return False
        del self.tokens[0]
        return True


def _compare(path: list[str], wanted: bool, expected: str | float, document: Mapping[str, Any]) -> bool:
    """A field that is missing equals nothing, and differs from nothing."""
    value: Any = document
    for name in path:
        if not isinstance(value, Mapping) or name not in value:
            return False
        value = value[name]
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        return False
    return (value == expected) is wanted
