"""`{{user `x`}}` and `{{env `X`}}` of a Packer JSON template.

Packer's documentation, "JSON templates: user variables" and "template engine", read 2026-11-25: a variable's value may
name other variables and the environment; everything else may name variables.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping

_QUOTE = "[`'\"]"
_CALL = re.compile(rf"\{{\{{-?\s*(user|env)\s+{_QUOTE}([\w.-]+){_QUOTE}\s*-?\}}\}}")
_VAR = re.compile(r"\bvar\.([\w-]+)")
_OTHER = re.compile(r"\{\{.*?\}\}|\$\{.*?\}", re.DOTALL)
_DEEPEST = 20


class UserVariables:
    """The variables of a template by name; None: declared without a value.

    `environment`: by a variable's name, the environment variables from which its value comes.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.environment: dict[str, set[str]] = {}

    def value(self, name: str) -> object:
        """A variable's value; None where it has none, or where it is made of itself."""
        return self._of(name, 0, name)

    def resolved(self, value: object) -> object:
        """A document with the variables' values in place of their names; None where a variable alone has no value."""
        return self._resolved(value, 0, "")

    def _of(self, name: str, depth: int, asked_by: str) -> object:
        return self._resolved(self._values.get(name), depth + 1, asked_by) if depth < _DEEPEST else None

    def _resolved(self, value: object, depth: int, asked_by: str) -> object:
        if isinstance(value, Mapping):
            return {key: self._resolved(item, depth, asked_by) for key, item in value.items()}
        if isinstance(value, list):
            return [self._resolved(item, depth, asked_by) for item in value]
        if not isinstance(value, str):
            return value
        alone = _CALL.fullmatch(value.strip())
        if alone:
            return self._call(alone, depth, asked_by)
        return _CALL.sub(lambda call: _text(self._call(call, depth, asked_by)), value)

    def _call(self, call: re.Match[str], depth: int, asked_by: str) -> object:
        if call[1] == "user":
            return self._of(call[2], depth, asked_by)
        self.environment.setdefault(asked_by, set()).add(call[2])
        return os.environ.get(call[2])


def is_resolved(value: object) -> bool:
    """Whether no call is left in a text: `{{timestamp}}`, `${uuidv4()}`."""
    return not (isinstance(value, str) and _OTHER.search(value))


def refers_to_variable(value: object) -> bool:
    """Whether a raw value is a variable and nothing else, which has a line of its own."""
    if isinstance(value, list):
        return bool(value) and all(refers_to_variable(item) for item in value)
    return isinstance(value, str) and bool(
        re.fullmatch(rf"\{{\{{-?\s*user\s+{_QUOTE}[\w.-]+{_QUOTE}\s*-?\}}\}}|\$\{{var\.[\w-]+\}}", value.strip())
    )


def variables_in(raw: object) -> set[str]:
    """The variables that a raw value names, at any depth."""
    if isinstance(raw, Mapping):
        return {name for item in raw.values() for name in variables_in(item)}
    if isinstance(raw, list):
        return {name for item in raw for name in variables_in(item)}
    text = raw if isinstance(raw, str) else ""
    return {call[2] for call in _CALL.finditer(text) if call[1] == "user"} | set(_VAR.findall(text))


def _text(value: object) -> str:
    return "" if value is None else str(value)
