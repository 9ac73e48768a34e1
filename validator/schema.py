"""The grammar of a user's files: kinds of values that report all mistakes at once, each with its path and a suggestion.

Recipes (gpu_ami/recipes/grammar.py) and waivers (validator/waivers.py) are read with it.
"""

from __future__ import annotations

import datetime
import difflib
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


def did_you_mean(value: object, known: Iterable[str]) -> str:
    """`; did you mean X?` with the most similar of the known names; "" if none is similar."""
    by_folded = {name.lower(): name for name in known}
    near = difflib.get_close_matches(str(value).lower(), by_folded, n=1, cutoff=0.6)
    return f"; did you mean {by_folded[near[0]]}?" if near else ""


@dataclass(frozen=True)
class Mistake:
    """A key path (`nvidia_driver.version`) and a message: the value and what is allowed."""

    path: str
    message: str


def key_path(path: str, key: Any) -> str:
    """The path of a key below another. A key with other characters than letters, digits, - and _ is quoted."""
    word = key if isinstance(key, str) and re.fullmatch(r"[\w-]+", key) else repr(key)
    return f"{path}.{word}" if path else word


@dataclass(frozen=True)
class Text:
    """Text that matches the whole `pattern`; messages show `example`."""

    example: str
    pattern: str = r".+"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, str):
            quoted = (
                f'; in YAML write "{value}"' if isinstance(value, (int, float)) and not isinstance(value, bool) else ""
            )
            yield Mistake(path, f"expected text such as {self.example}, got {_shown(value)}{quoted}")
        elif not re.fullmatch(self.pattern, value):
            yield Mistake(path, f"expected something like {self.example}, got {_shown(value)}")


@dataclass(frozen=True)
class Integer:
    low: int
    high: int
    unit: str = ""

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            unit = f" {self.unit}" if self.unit else ""
            yield Mistake(path, f"expected a whole number from {self.low} to {self.high}{unit}, got {_shown(value)}")


@dataclass(frozen=True)
class Flag:
    """true or false."""

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, bool):
            yield Mistake(path, f"expected true or false, got {_shown(value)}")


@dataclass(frozen=True)
class Choice:
    allowed: Sequence[Any]

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if isinstance(value, bool) or not any(value == item and type(value) is type(item) for item in self.allowed):
            allowed = [str(item) for item in self.allowed]
            near = f'; in YAML write "{value}"' if str(value) in allowed else did_you_mean(value, allowed)
            yield Mistake(path, f"expected one of {', '.join(allowed)}, got {_shown(value)}{near}")


@dataclass(frozen=True)
class Named:
    """The name of a row in a table that is too long to print. what: what the names are, for messages.

    pattern: other names that are allowed too (a builder does not have to be an accelerated instance type).
    """

    what: str
    names: Collection[str]
    example: str
    pattern: str = ""

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, str):
            yield Mistake(path, f"expected {self.what} such as {self.example}, got {_shown(value)}")
        elif value not in self.names and not (self.pattern and re.fullmatch(self.pattern, value)):
            yield Mistake(path, f"no {self.what} {value!r} in the facts{did_you_mean(value, self.names)}")


@dataclass(frozen=True)
class ListOf:
    item: Kind
    unique: bool = True

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, list) or not value:
            yield Mistake(path, f"expected a list with at least one item, got {_shown(value)}")
            return
        for index, item in enumerate(value):
            yield from self.item.check(item, f"{path}[{index}]")
            if self.unique and item in value[:index]:
                yield Mistake(f"{path}[{index}]", f"{_shown(item)} is a duplicate entry")


@dataclass(frozen=True)
class Keys:
    """A mapping with these keys. needed: the keys that must exist after all layers are merged."""

    keys: Mapping[str, Kind]
    needed: Sequence[str] = ()

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, dict):
            yield Mistake(path or "(whole file)", f"expected keys and values, got {_shown(value)}")
            return
        for key, item in value.items():
            below = key_path(path, key)
            kind = self.keys.get(key) if isinstance(key, str) else None
            if kind is None:
                yield Mistake(below, f"unknown key{did_you_mean(key, self.keys)}; allowed: {', '.join(self.keys)}")
            else:
                yield from kind.check(item, below)

    def missing(self, value: Any, path: str = "") -> Iterator[Mistake]:
        """The needed keys that are missing, here and in every nested mapping that exists."""
        if not isinstance(value, dict):
            return
        for key in self.needed:
            if key not in value:
                yield Mistake(f"{path}.{key}" if path else key, "missing")
        for key, kind in self.keys.items():
            if isinstance(kind, Keys) and key in value:
                yield from kind.missing(value[key], f"{path}.{key}" if path else key)


@dataclass(frozen=True)
class MapOf:
    """A mapping whose keys match `pattern` and whose values are all of one kind; messages show `example`."""

    pattern: str
    example: str
    item: Kind

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, dict):
            yield Mistake(path, f"expected keys and values, got {_shown(value)}")
            return
        for key, item in value.items():
            below = key_path(path, key)
            if not isinstance(key, str) or not re.fullmatch(self.pattern, key):
                yield Mistake(below, f"expected a key like {self.example}")
            else:
                yield from self.item.check(item, below)


@dataclass(frozen=True)
class Day:
    """A date. YAML parses an unquoted date as a date, not as text."""

    example: str = "2027-01-31"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if self.parse(value) is None:
            yield Mistake(path, f"expected a date such as {self.example}, got {_shown(value)}")

    @staticmethod
    def parse(value: Any) -> datetime.date | None:
        """The date; None if the value is not a date."""
        if isinstance(value, datetime.date):
            return value.date() if isinstance(value, datetime.datetime) else value
        try:
            return datetime.date.fromisoformat(str(value))
        except ValueError:
            return None


Kind = Day | Text | Integer | Flag | Choice | Named | ListOf | Keys | MapOf


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, bool):
        return str(value).lower()
    text = str(value)
    return repr(text if len(text) <= 60 else text[:57] + "...") if isinstance(value, str) else text
