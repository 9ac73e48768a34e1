"""CDI specifications on disk: those that nvidia-ctk wrote (its own YAML, or JSON)."""

import json
import os
import re
from typing import Any

from .log import Failure
from .specification import Table

Rows = list[tuple[int, str]]


def specifications(folders: list[str]) -> list[tuple[str, Table]]:
    """(path, document) of each file; a later folder has precedence. A file that cannot be read is left out."""
    found = []
    for folder in folders:
        for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
            if name.endswith((".yaml", ".json")):
                path = os.path.join(folder, name)
                try:
                    with open(path, encoding="utf-8") as file:
                        text = file.read()
                    document = json.loads(text) if name.endswith(".json") else parse(text)
                except (OSError, ValueError):
                    continue
                if "kind" in document:
                    found.append((path, document))
    return found


def names(folders: list[str]) -> list[str]:
    return sorted(
        {
            "%s=%s" % (document["kind"], device["name"])
            for _, document in specifications(folders)
            for device in document.get("devices") or []
        }
    )


def resolve(requested: list[str], folders: list[str]) -> list[Table]:
    """The edits of the requested devices (`vendor/class=name`), and those of their specifications."""
    edits: list[Table] = []
    common: dict[str, Table] = {}
    unknown = []
    devices = {}
    for path, document in specifications(folders):
        for device in document.get("devices") or []:
            devices["%s=%s" % (document["kind"], device["name"])] = (path, document, device)
    for name in requested:
        if name not in devices:
            unknown.append(name)
            continue
        path, document, device = devices[name]
        common.setdefault(path, document.get("containerEdits") or {})
        edits.append(device.get("containerEdits") or {})
    if unknown:
        raise Failure("failed to inject CDI devices: unresolvable CDI devices %s" % ", ".join(unknown))
    return [*common.values(), *edits]


def parse(text: str) -> Table:
    """The YAML that specification.text_of writes: mappings, lists and plain or JSON scalars. ValueError: other YAML."""
    rows = [
        (len(line) - len(line.lstrip(" ")), line.strip())
        for line in text.splitlines()
        if line.strip() and line.strip() != "---" and not line.lstrip().startswith("#")
    ]
    value, rest = _block(rows, 0)
    if rest:
        raise ValueError("unexpected line: %s" % rest[0][1])
    return dict(value)


def _block(rows: Rows, depth: int) -> tuple[Any, Rows]:
    if rows and rows[0][1].startswith("- "):
        return _list(rows, rows[0][0])
    table: Table = {}
    while rows and rows[0][0] == depth and not rows[0][1].startswith("- "):
        match = re.fullmatch(r"([\w.-]+):(?: (.*))?", rows[0][1])
        if not match:
            raise ValueError("no key: %s" % rows[0][1])
        if match[2] is not None:
            table[match[1]], rows = _scalar(match[2]), rows[1:]
        else:
            inner = rows[1:]
            is_list = bool(inner) and inner[0][0] >= depth and inner[0][1].startswith("- ")
            deeper = bool(inner) and inner[0][0] > depth
            table[match[1]], rows = _block(inner, inner[0][0]) if is_list or deeper else (None, inner)
    return table, rows


def _list(rows: Rows, depth: int) -> tuple[list[Any], Rows]:
    items = []
    while rows and rows[0][0] == depth and rows[0][1].startswith("- "):
        first = rows[0][1][2:].strip()
        if re.match(r"[\w.-]+:( |$)", first):
            inner = [(depth + 2, first), *rows[1:]]
            item, rows = _block(inner, depth + 2)
        else:
            item, rows = _scalar(first), rows[1:]
        items.append(item)
    return items, rows


def _scalar(text: str) -> Any:
    return json.loads(text) if text[:1] in '"[{' or text.isdigit() else text
