"""Adds rows to the text of a table of variables/facts, so that its comments and its order are kept."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gpu_ami.recipes.facts import versions


def add_release(text: str, release: str, row: Mapping[str, Any]) -> str | None:
    """A row below `releases:`, in the order of versions. None: the table has no such key."""
    lines = text.splitlines(keepends=True)
    try:
        start = next(number for number, line in enumerate(lines) if re.fullmatch(r"releases:\s*", line))
    except StopIteration:
        return None
    place = start + 1
    for number in range(start + 1, len(lines)):
        line = lines[number]
        if re.match(r"\S", line) and not line.startswith("#"):
            break
        key = re.match(r"""  ["']?([^\s"':#]+)["']?:""", line)
        if key and versions.parts(key[1]) > versions.parts(release):
            break
        if line.strip() and not line.lstrip().startswith("#"):
            place = number + 1
    lines.insert(place, f"  {_scalar(release)}: {_flow(row)}\n")
    return "".join(lines)


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
    entry = f"    {system}: {_flow(row)}\n"
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


def _flow(value: Any) -> str:
    """YAML in one line; text that YAML would read as something else, or that has marks of YAML, is quoted."""
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{key}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    if not isinstance(value, str):
        return json.dumps(value)
    is_plain = re.fullmatch(r"[A-Za-z][\w./+-]*|\d+\.\d+\.[\d.]+|\d{4}-\d{2}-\d{2}", value)
    words = ("yes", "no", "on", "off", "true", "false", "null", "y", "n")
    return value if is_plain and value.lower() not in words else json.dumps(value, ensure_ascii=False)
