"""Entries, systems and rules of the tests, and what an account finds in them."""

from __future__ import annotations

import re
from dataclasses import replace

from validator.file_account import Entry, Inventory, Rule, explain
from validator.file_account.grammar import expression

DEBIAN = "debian"


def file(path: str, **values: object) -> Entry:
    return replace(Entry(path, "f", 0o644, "root", "root", sha256="1" * 64, size=1), **values)  # type: ignore[arg-type]


def system(*entries: Entry, **values: object) -> Inventory:
    return Inventory({entry.path: entry for entry in entries}, os=DEBIAN, **values)  # type: ignore[arg-type]


def rule(path: str, **values: object) -> Rule:
    return Rule("rule", (path,), expression=re.compile(expression(path), re.DOTALL), **values)  # type: ignore[arg-type]


def findings(image: Inventory, base: Inventory, *rules: Rule, **options: object) -> list[str]:
    account = explain(image, base, rules, **options)  # type: ignore[arg-type]
    return [f"{finding.path} {finding.change}: {finding.what}" for finding in account.findings]
