"""What the translator refuses of a configuration: its JSON schema, and its own rules for log files.

Source: aws/amazon-cloudwatch-agent v1.300071.0, translator/translate/logs/util (validate_fields.go) and
logs_collected/files/collect_list (ruleEncoding.go, ruleLogFilters.go). The schema is release_schema.json, the table of
the linter, written by tests/replicas/test_cloudwatch_agent_schema.py --update-golden.
"""

from __future__ import annotations

import codecs
import json
import os
import re
from collections.abc import Iterator

from .agent_schema import Schema

Section = dict[str, object]
Mistake = tuple[str, str]  # path and message

CLASSES = ("STANDARD", "INFREQUENT_ACCESS")
_LOOK_AROUND = re.compile(r"\(\?<?[=!]")  # Go's regular expressions have none
with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "release_schema.json"), encoding="utf-8") as _file:
    SCHEMA = Schema(json.load(_file))


def check(config: Section) -> Iterator[Mistake]:
    """Every mistake of the file. Names of plugins and measurements are not looked at."""
    for path, message in SCHEMA.mistakes(config):
        yield "".join("/%s" % name for name in path), message
    logs = config.get("logs")
    collected = logs.get("logs_collected") if isinstance(logs, dict) else None
    for name in ("files", "journald"):
        plugin = collected.get(name) if isinstance(collected, dict) else None
        entries = plugin.get("collect_list") if isinstance(plugin, dict) else None
        if isinstance(entries, list):
            objects = [(index, entry) for index, entry in enumerate(entries) if isinstance(entry, dict)]
            yield from _entries(objects, f"/logs/logs_collected/{name}/collect_list")


def _entries(entries: list[tuple[int, Section]], path: str) -> Iterator[Mistake]:
    for index, entry in entries:
        if entry.get("file_path") == "":
            yield f"{path}/{index}/file_path", "file_path is required"
        yield from _filters(entry.get("filters", []), f"{path}/{index}/filters")
        yield from _encoding(entry.get("encoding", "utf-8"), f"{path}/{index}/encoding")
    yield from _conflicts([entry for _, entry in entries], path)


def _filters(filters: object, path: str) -> Iterator[Mistake]:
    for index, item in enumerate(filters if isinstance(filters, list) else []):
        expression = item.get("expression") if isinstance(item, dict) else None
        if not isinstance(expression, str):
            yield f"{path}/{index}", "expected an expression"
            continue
        try:
            re.compile(expression)
        except re.error as error:
            yield f"{path}/{index}", f"expected a regular expression as expression ({error})"
        if _LOOK_AROUND.search(expression):
            yield f"{path}/{index}", f"expected an expression without look-around, got {expression!r}"


def _encoding(name: object, path: str) -> Iterator[Mistake]:
    try:
        codecs.lookup(str(name))
    except LookupError:
        yield path, f"Encoding {name} is an invalid value."


def _conflicts(entries: list[Section], path: str) -> Iterator[Mistake]:
    """One log group has one retention and one class; entries without one leave it to the others."""
    first: dict[tuple[str, str], object] = {}
    for entry in entries:
        for key in ("retention_in_days", "log_group_class"):
            value = entry.get(key, -1)
            group = str(entry.get("log_group_name", "")).lower()
            known = value in CLASSES if key == "log_group_class" else value != -1
            if known and first.setdefault((group, key), value) != value:
                yield path, f"Different {key} values can't be set for the same log group: {group}"
