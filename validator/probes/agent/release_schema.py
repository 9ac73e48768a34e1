"""What the agent's own check of its configuration refuses: keys, types, bounds and values (release_schema.yml).

The agent does not start with a file that its check refuses. The linter's other rules are stricter, and name what the
service does.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from pathlib import Path

import yaml

from onhost.agent_schema import Schema
from validator.probes.agent.findings import ERROR, Finding

TABLE = Path(__file__).with_name("release_schema.yml")


@functools.cache
def release_schema() -> Schema:
    """The planned release's table."""
    return Schema(yaml.load(TABLE.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))


def schema_findings(config: object) -> Iterator[Finding]:
    """Errors of what the release's check refuses, each at the key that it is about."""
    for path, message in release_schema().mistakes(config):
        dotted = "".join(f"[{name}]" if isinstance(name, int) else f".{name}" for name in path)
        yield Finding(ERROR, dotted.removeprefix("."), message)


def retention_days() -> tuple[int, ...]:
    """The days for which the agent lets a log group keep its events; -1: it leaves the group as it is."""
    rule = release_schema().rule("logs", "logs_collected", "files", "collect_list", "[]", "retention_in_days")
    return tuple(rule["values"])
