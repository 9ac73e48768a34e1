"""Writes TOML as containerd and the toolkit do: a table's plain values first, then its tables."""

import json

from .specification import Table


def text_of(table: Table) -> str:
    return "\n".join(_rows(table, ())) + "\n"


def _rows(table: Table, path: tuple[str, ...]) -> list[str]:
    rows: list[str] = []
    plain = {key: value for key, value in table.items() if not isinstance(value, dict)}
    if path and (plain or not table):
        rows += ["", "[%s]" % ".".join(_key(part) for part in path)]
    rows += ["%s = %s" % (_key(key), json.dumps(value)) for key, value in sorted(plain.items())]
    for key in sorted(key for key, value in table.items() if isinstance(value, dict)):
        rows += _rows(table[key], (*path, key))
    return rows


def _key(text: str) -> str:
    return text if text.replace("_", "").replace("-", "").isalnum() else json.dumps(text)
