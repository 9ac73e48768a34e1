"""The grammar of a user's files: kinds of values that report all mistakes at once, each with its path and a suggestion.

Recipes (gpu_ami/recipes/layers.py), waivers (validator/waivers.py) and footprints (validator/file_account/grammar.py)
are read with it.
"""

from __future__ import annotations

import datetime
import difflib
import math
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Similar names take a millisecond a key: a file that is something else may have any number of keys.
_SHOWN_UNKNOWN = 50
_MANY_KEYS = 12
_LONGEST_SHOWN = 60


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
    if isinstance(key, bool) or key is None:
        word = "null" if key is None else str(key).lower()
    elif written := getattr(key, "written", ""):
        word = str(written)  # 1.10, not 1.1
    else:
        word = key if isinstance(key, str) and re.fullmatch(r"[\w-]+", key) else repr(key)
    return f"{path}.{word}" if path else word


def key_lines(text: str) -> dict[str, int]:
    """The line, from 1, of each key and item of a YAML text, by its path (`instance_types[0]`); {}: it is not YAML."""
    import yaml

    lines: dict[str, int] = {}
    seen: set[int] = set()  # an alias stands for one node wherever it is used

    def walk(node: Any, path: str) -> None:
        if id(node) in seen:
            return
        seen.add(id(node))
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                below = key_path(path, _KEYS_READ.get(str(key.value).lower(), key.value))
                unquoted = f"{path}.{key.value}" if path else str(key.value)
                for name in (below, unquoted):  # messages of rules do not quote p5.48xlarge
                    lines.setdefault(name, key.start_mark.line + 1)
                walk(value, below)
        elif isinstance(node, yaml.SequenceNode):
            for index, item in enumerate(node.value):
                lines[f"{path}[{index}]"] = item.start_mark.line + 1
                walk(item, f"{path}[{index}]")

    try:
        walk(yaml.compose(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)), "")
    except (yaml.YAMLError, RecursionError):
        return {}
    return lines


# Keys that YAML reads as another value, as key_path writes that.
_KEYS_READ = {"on": True, "yes": True, "true": True, "off": False, "no": False, "false": False, "null": None, "~": None}


def line_of(lines: Mapping[str, int], path: str) -> int | None:
    """The line of a path, or of the nearest key above it that the text has."""
    while path and path not in lines:
        path = path[: max(path.rfind("."), path.rfind("["), 0)]
    return lines.get(path)


@dataclass(frozen=True)
class Text:
    """Text that matches the whole `pattern`; messages show `example`. what: what the text is, in words."""

    example: str
    pattern: str = r".+"
    what: str = "text"

    @property
    def expected(self) -> str:
        return f"{self.what} such as {self.example}"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, str):
            yield Mistake(path, f"expected {self.expected}, got {_shown(value)}{_quoted(value)}")
        elif not _matches(self.pattern, value):
            expected = self.expected if self.what != "text" else f"something like {self.example}"
            yield Mistake(path, f"expected {expected}, got {_shown(value)}{self._near(value)}")

    def _near(self, value: str) -> str:
        """The value as the pattern takes it: without spaces around it, in lower case, without the v of a version."""
        bare = value.strip()
        for near in (bare, bare.lower(), re.sub(r"^[vV](?=\d)", "", bare)):
            if near and near != value and _matches(self.pattern, near):
                return f"; did you mean {near}?"
        return ""


@dataclass(frozen=True)
class Integer:
    low: int
    high: int
    unit: str = ""

    @property
    def expected(self) -> str:
        return f"a whole number from {self.low} to {self.high}{f' {self.unit}' if self.unit else ''}"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, int) or isinstance(value, bool) or not self.low <= value <= self.high:
            yield Mistake(path, f"expected {self.expected}, got {_shown(value)}{self._how(value)}")
        elif written := getattr(value, "written", ""):  # 010 is 8, and 2:30 is 150
            yield Mistake(path, f"expected {self.expected}, got {written}, which YAML reads as {int(value)}")

    def _how(self, value: Any) -> str:
        """How to write a number that came as text."""
        if not isinstance(value, str) or not re.fullmatch(r"\s*\d+\s*[A-Za-z]*\s*", value):
            return ""
        return f"; in YAML write {value.strip()} without quotes" if value.strip().isdigit() else "; write no unit"


@dataclass(frozen=True)
class Number:
    """A number that may have a fraction, and is not negative. high: the highest."""

    high: float = math.inf

    @property
    def expected(self) -> str:
        return "a number that is not negative" if self.high == math.inf else f"a number from 0 to {self.high:g}"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not is_number or not 0 <= value <= self.high or value == math.inf:
            yield Mistake(path, f"expected {self.expected}, got {_shown(value)}")


@dataclass(frozen=True)
class Flag:
    """true or false."""

    expected = "true or false"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, bool):
            said = {"yes": "true", "on": "true", "true": "true", "no": "false", "off": "false", "false": "false"}
            near = said.get(value.lower()) if isinstance(value, str) else None
            how = f"; in YAML write {near} without quotes" if near else ""
            yield Mistake(path, f"expected {self.expected}, got {_shown(value)}{how}")


@dataclass(frozen=True)
class Choice:
    """One of `allowed`. other_names: what others call an allowed value, for the suggestion. otherwise: what to do
    where the value is right and is not among them.
    """

    allowed: Sequence[Any]
    other_names: Mapping[str, str] = field(default_factory=dict)
    otherwise: str = ""

    @property
    def expected(self) -> str:
        return f"one of {', '.join(map(str, self.allowed))}"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not any(value == item and type(value) is type(item) for item in self.allowed):
            otherwise = f"; {self.otherwise}" if self.otherwise and isinstance(value, str) else ""
            yield Mistake(path, f"expected {self.expected}, got {_shown(value)}{self._hint(value)}{otherwise}")

    def _hint(self, value: Any) -> str:
        if isinstance(value, int) and not isinstance(value, bool) and all(isinstance(one, int) for one in self.allowed):
            return f"; nearest: {min(self.allowed, key=lambda one: abs(one - value))}"
        same = next((item for item in self.allowed if str(item) == str(value)), None)
        if isinstance(value, str) and value in self.other_names:
            return f"; did you mean {self.other_names[value]}?"
        if same is None:
            return _quoted(value) if isinstance(value, bool) else did_you_mean(value, map(str, self.allowed))
        return _quoted(value) if isinstance(same, str) else f"; in YAML write {value} without quotes"


@dataclass(frozen=True)
class Named:
    """The name of a row in a table that is too long to print. what: what the names are, for messages.

    pattern: other names that are allowed too (a builder does not have to be an accelerated instance type).
    otherwise: what to do where the name is right and the table lacks it. refused: a pattern of names that cannot be
    one, with the reason.
    """

    what: str
    names: Collection[str]
    example: str
    pattern: str = ""
    otherwise: str = ""
    refused: tuple[str, str] = ("", "")

    @property
    def expected(self) -> str:
        return f"{self.what} such as {self.example}"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if isinstance(value, str) and value not in self.names and re.fullmatch(self.refused[0] or r"(?!)", value):
            yield Mistake(path, f"{value}: {self.refused[1]}; expected one such as {self.example}")
        elif not isinstance(value, str):
            quoted = _quoted(value) if isinstance(value, bool) else ""
            yield Mistake(path, f"expected {self.expected}, got {_shown(value)}{quoted}")
        elif value not in self.names and not (self.pattern and _matches(self.pattern, value)):
            otherwise = f"; {self.otherwise}" if self.otherwise and isinstance(value, str) else ""
            yield Mistake(path, f"no {self.what} {value!r} in the facts{did_you_mean(value, self.names)}{otherwise}")


@dataclass(frozen=True)
class ListOf:
    item: Kind
    unique: bool = True
    may_be_empty: bool = False

    @property
    def expected(self) -> str:
        return f"{self._length}, each {self.item.expected}"

    @property
    def _length(self) -> str:
        return "a list" if self.may_be_empty else "a list with at least one item"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, list) or not (value or self.may_be_empty):
            listed = f"; in YAML write [{value}]" if isinstance(value, str) and value else ""
            yield Mistake(path or "(whole file)", f"expected {self._length}, got {_shown(value)}{listed}")
            return
        for index, item in enumerate(value):
            yield from self.item.check(item, f"{path}[{index}]")
            if self.unique and item in value[:index]:
                yield Mistake(f"{path}[{index}]", f"{_shown(item)} is a duplicate entry")


@dataclass(frozen=True)
class OneOrMore:
    """One value, or a list of them, which may be empty."""

    item: Kind

    @property
    def expected(self) -> str:
        return f"{self.item.expected}, or a list of such"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, list):
            yield from self.item.check(value, path)
            return
        for index, item in enumerate(value):
            yield from self.item.check(item, f"{path}[{index}]")


@dataclass(frozen=True)
class Keys:
    """A mapping with these keys. needed: the keys that must exist after all layers are merged."""

    keys: Mapping[str, Kind]
    needed: Sequence[str] = ()

    @property
    def expected(self) -> str:
        return f"keys and values; allowed: {', '.join(self.keys)}"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, dict):
            allowed = f"; allowed: {', '.join(self.keys)}" if path else ""
            yield Mistake(path or "(whole file)", f"expected keys and values, got {_shown(value)}{allowed}")
            return
        unknown = 0
        for key, item in value.items():
            below = key_path(path, key)
            kind = self.keys.get(key) if isinstance(key, str) else None
            if kind is not None:
                yield from kind.check(item, below)
            elif (unknown := unknown + 1) <= _SHOWN_UNKNOWN:
                yield Mistake(below, f"unknown key{self._hint(key)}")
        if unknown > _SHOWN_UNKNOWN:
            more = unknown - _SHOWN_UNKNOWN
            yield Mistake(path or "(whole file)", f"{more:,} more unknown keys; allowed: {', '.join(self.keys)}")

    def _hint(self, key: Any) -> str:
        """The most similar key, and all keys unless they are many and one is similar."""
        near = did_you_mean(key, self.keys) if isinstance(key, str) else _quoted(key) * isinstance(key, bool)
        return near if near and len(self.keys) > _MANY_KEYS else f"{near}; allowed: {', '.join(self.keys)}"

    def missing(self, value: Any, path: str = "") -> Iterator[Mistake]:
        """The needed keys that are missing, here and in every nested mapping that exists, in lists too."""
        if not isinstance(value, dict):
            return
        for key in self.needed:
            if key not in value:
                yield Mistake(key_path(path, key), f"missing: expected {self.keys[key].expected}")
        for key, kind in self.keys.items():
            below, item = key_path(path, key), value.get(key)
            if isinstance(kind, Keys):
                yield from kind.missing(item, below)
            elif isinstance(kind, ListOf) and isinstance(kind.item, Keys) and isinstance(item, list):
                for index, row in enumerate(item):
                    yield from kind.item.missing(row, f"{below}[{index}]")


@dataclass(frozen=True)
class MapOf:
    """A mapping whose keys match `pattern` and whose values are all of one kind; messages show `example`."""

    pattern: str
    example: str
    item: Kind

    @property
    def expected(self) -> str:
        return f"keys and values, such as {self.example}: {self.item.expected}"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if not isinstance(value, dict):
            yield Mistake(path, f"expected keys and values, got {_shown(value)}")
            return
        for key, item in value.items():
            below = key_path(path, key)
            if not isinstance(key, str) or not _matches(self.pattern, key):
                quoted = _quoted(key) if not isinstance(key, str) else ""
                yield Mistake(below, f"expected a key like {self.example}{quoted}")
            else:
                yield from self.item.check(item, below)


@dataclass(frozen=True)
class Day:
    """A date. YAML parses an unquoted date as a date, not as text."""

    example: str = "2027-01-31"

    @property
    def expected(self) -> str:
        return f"a date such as {self.example}"

    def check(self, value: Any, path: str) -> Iterator[Mistake]:
        if self.parse(value) is None:
            yield Mistake(path, f"expected {self.expected}, got {_shown(value)}")

    @staticmethod
    def parse(value: Any) -> datetime.date | None:
        """The date; None if the value is not a date."""
        if isinstance(value, datetime.date):
            return value.date() if isinstance(value, datetime.datetime) else value
        try:
            return datetime.date.fromisoformat(str(value))
        except ValueError:
            return None


Kind = Day | Text | Integer | Number | Flag | Choice | Named | ListOf | OneOrMore | Keys | MapOf


def _matches(pattern: str, text: str) -> bool:
    """Whether a text is of a pattern, whose letters and digits are ASCII's: others look like them."""
    return re.fullmatch(pattern, text, re.ASCII) is not None


def _quoted(value: Any) -> str:
    """How a number or boolean is written as text in YAML; "" for other values."""
    if isinstance(value, bool):
        return "; YAML reads yes, no, on and off so: write it in quotes"
    return f'; in YAML write "{_written(value)}"' if isinstance(value, (int, float)) else ""


def _written(value: Any) -> str:
    """A number as the file has it: 1.10, not 1.1 (gpu_ami/files.py keeps the text)."""
    return str(getattr(value, "written", value))


def _shown(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, dict):
        return "a mapping" if value else "an empty mapping"
    if isinstance(value, list):
        return f"a list of {len(value)}" if value else "an empty list"
    if isinstance(value, bool):
        return str(value).lower()
    text = _written(value)
    short = text if len(text) <= _LONGEST_SHOWN else text[: _LONGEST_SHOWN - 3] + "..."
    return repr(short) if isinstance(value, str) else short
