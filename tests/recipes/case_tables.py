"""Tables of cases: recipes and what must come of each.

A table is a YAML file of `cases/`, its cases sorted by name:

    name      what the case is about; unique in all tables
    recipe    the recipe's text, as a user would write it; its first line says what the case shows
    set       overrides of the command line, if any
    error     the exact message; or
    plan      versions, notes and whatever else the case is about
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

FOLDER = Path(__file__).parent / "cases"
TABLES = tuple(sorted(FOLDER.glob("*.yml")))


@dataclass(frozen=True)
class Case:
    """One recipe; `expected` is its error's text or what its plan says, None in a case that was just written."""

    table: Path
    name: str
    recipe: str
    overrides: tuple[str, ...]
    expected: str | Mapping[str, Any] | None

    def document(self) -> dict[str, object]:
        """As it stands in the table."""
        fields: dict[str, object] = {"name": self.name, "recipe": self.recipe}
        if self.overrides:
            fields["set"] = list(self.overrides)
        if self.expected is not None:
            fields["error" if isinstance(self.expected, str) else "plan"] = self.expected
        return fields


def cases(tables: Sequence[Path] = TABLES) -> list[Case]:
    """Every case of the tables; what is no case is an error that names it."""
    found = [_case(table, entry) for table in tables for entry in yaml.safe_load(table.read_text(encoding="utf-8"))]
    for table in tables:
        names = [case.name for case in found if case.table == table]
        assert names == sorted(names), f"{table.name}: expected cases sorted by name, got {names}"
    twice = {case.name for case in found if sum(case.name == other.name for other in found) > 1}
    assert not twice, f"names of more than one case: {sorted(twice)}"
    return found


def _case(table: Path, entry: Mapping[str, Any]) -> Case:
    unknown = set(entry) - {"name", "recipe", "set", "error", "plan"}
    where = f"{table.name}: {entry.get('name')}"
    assert not unknown, f"{where}: unknown keys {sorted(unknown)}"
    assert {"name", "recipe"} <= set(entry), f"{where}: expected name and recipe, got {sorted(entry)}"
    assert not {"error", "plan"} <= set(entry), f"{where}: expected an error or a plan, got both"
    return Case(
        table, entry["name"], entry["recipe"], tuple(entry.get("set", ())), entry.get("error", entry.get("plan"))
    )


def update(case: Case, outcome: str | Mapping[str, Any]) -> None:
    """Writes what came of a case into its table; the rest of the table stays."""
    content = cases([case.table])
    write(case.table, [replace(other, expected=outcome) if other.name == case.name else other for other in content])


def write(table: Path, content: Sequence[Case]) -> None:
    """The table's text: a recipe and a message as they are, line by line."""
    documents = [case.document() for case in sorted(content, key=lambda case: case.name)]
    pieces = [
        yaml.dump([document], Dumper=_Dumper, sort_keys=False, width=140, allow_unicode=True, default_flow_style=None)
        for document in documents
    ]
    table.write_text("\n".join(pieces), encoding="utf-8")


class _Dumper(yaml.SafeDumper):
    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:
        del indentless  # lists in mappings are indented, as yamllint wants them
        super().increase_indent(flow, False)


def _text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)


_Dumper.add_representer(str, _text)
