"""Changes to the text of a table of variables/facts, so that its comments and its order are kept."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from gpu_ami.recipes.facts import tables


def add_release(text: str, release: str, row: Mapping[str, Any]) -> str | None:
    """A row below `releases:`, in the order of versions. None: the table has no such key."""
    return add_entry(text, ("releases", release), row)


def add_entry(text: str, path: Sequence[str], row: Mapping[str, Any] | str) -> str | None:
    """A row below the keys of a path, in the order of versions. None: the table has not these keys, or has the row."""
    *keys, name = path
    lines = text.splitlines(keepends=True)
    span = _block(lines, keys)
    if span is None:
        return None
    indent = "  " * len(keys)
    place = span[0]
    for number in range(*span):
        line = lines[number]
        key = re.match(rf"""{indent}["']?([^\s"':#]+)["']?:""", line)
        if key and key[1] == name:
            return None
        if key and tables.parts(key[1]) > tables.parts(name):
            break
        if line.strip() and not line.lstrip().startswith("#"):
            place = number + 1
    lines.insert(place, f"{indent}{_scalar(name)}: {flow_style(row)}\n")
    return "".join(lines)


def _block(lines: Sequence[str], keys: Sequence[str]) -> tuple[int, int] | None:
    """The lines below a path of keys, each of which stands alone in its line."""
    start, end = 0, len(lines)
    for depth, key in enumerate(keys):
        indent = "  " * depth
        own = re.compile(rf"""{indent}["']?{re.escape(key)}["']?:\s*(#.*)?$""")
        found = next((number for number in range(start, end) if own.match(lines[number])), None)
        if found is None:
            return None
        ends = re.compile(rf" {{0,{len(indent)}}}[^\s#]")
        start, end = found + 1, next((n for n in range(found + 1, end) if ends.match(lines[n])), end)
    return start, end


def set_key(text: str, path: Sequence[str], key: str, value: str) -> str | None:
    """A key of a row, in place of its value or in addition to its keys. None: the table has no such row."""
    *keys, name = path
    lines = text.splitlines(keepends=True)
    span = _block(lines, keys)
    indent = "  " * len(keys)
    own = re.compile(rf"""{indent}["']?{re.escape(name)}["']?:""")
    at = next((number for number in range(*span) if own.match(lines[number])), None) if span else None
    if at is None:
        return None
    ends = re.compile(rf" {{0,{len(indent)}}}[^\s]")
    stop = next((number for number in range(at + 1, len(lines)) if ends.match(lines[number])), len(lines))
    row = "".join(lines[at:stop])
    # A value of a flow mapping ends at the next comma or brace, one of a block at the end of its line.
    old = re.search(rf"""(?<=[ {{]){key}: *("[^"]*"|[^\s,}}#]+)""", row)
    if old:
        row = f"{row[: old.start()]}{key}: {_scalar(value)}{row[old.end() :]}"
    elif row.partition("\n")[0].rstrip().endswith(":"):
        row = f"{row.rstrip()}\n{indent}  {key}: {_scalar(value)}\n"
    else:
        end = row.index("}") if row.count("{") == 1 else row.rindex("}")
        row = f"{row[:end]}, {key}: {_scalar(value)}{row[end:]}"
    return "".join([*lines[:at], row, *lines[stop:]])


def set_value(text: str, release: str, key: str, old: str, new: str, *, why: str) -> str | None:
    """A value of a release's row, with the reason behind it as a comment. None: the table has no such value."""
    number = re.escape(release)
    row = re.search(rf"""^  ["']?{number}["']?:.*\n(?:    .*\n)*""", text, re.MULTILINE)
    value = row and re.search(rf"""\b{key}: ["']?{re.escape(old)}["']?""", row[0])
    if not row or not value:
        return None
    start, end = row.start() + value.start(), row.start() + value.end()
    line_end = text.index("\n", end)
    return f"{text[:start]}{key}: {_scalar(new)}{text[end:line_end]}    # {new}: {why}{text[line_end:]}"


def add_driver(text: str, branch: str, release: str, source: str, today: str) -> str | None:
    """A release at the end of its branch's list, and its source after those that are there. None: no such list."""
    block = re.search(rf'^  "{branch}":\n(?:    .*\n|\n)+', text, re.MULTILINE)
    listed = block and re.search(r"releases:\s*\[([^\]]*)\]", block[0])
    if not block or not listed:
        return None
    at = block.start() + listed.end(1)
    comment = f"  # {release}: {source}, {today}"
    end = text.index("\n", at)
    return f"{text[:at]}, {release}{text[at:end]}{comment}{text[end:]}"


def set_seen(text: str, system: str, row: Mapping[str, Any]) -> str | None:
    """The row of a system below `systems.seen`, new or in place of the old one. None: the table has no such key."""
    seen = re.search(r"^systems:\n(?:(?:  .*)?\n)*?  seen:\n", text, re.MULTILINE)
    if not seen:
        return None
    entry = f"    {system}: {flow_style(row)}\n"
    old = re.compile(rf"    {system}:.*\n(?:      .*\n)*").match(text, _start_of(text, system, seen.end()))
    if old:
        return text[: old.start()] + entry + text[old.end() :]
    return text[: seen.end()] + entry + text[seen.end() :]


def _start_of(text: str, system: str, start: int) -> int:
    """Where the system's row begins below `seen:`; the end of the text where it has none."""
    at = start
    while text.startswith("    ", at):
        if text.startswith(f"    {system}:", at):
            return at
        at = text.index("\n", at) + 1
    return len(text)


def flow_style(value: Any) -> str:
    """YAML in one line; text that YAML would read as something else, or that has marks of YAML, is quoted."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{_scalar(key)}: {flow_style(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(flow_style, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = re.fullmatch(r"[A-Za-z][\w./+-]*|\d+\.\d+\.[\d.]+|\d{4}-\d{2}-\d{2}", value)
    words = ("yes", "no", "on", "off", "true", "false", "null", "y", "n")
    return value if is_plain and value.lower() not in words else json.dumps(value, ensure_ascii=False)
