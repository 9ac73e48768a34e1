"""The plan as the checks read it: a part that it lacks makes a check UNPROVEN, not broken."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from validator.observe import unproven


class Plan(Mapping[str, Any]):
    """plan.json. `plan["nvidia_driver"]["version"]`; a missing key ends the check as UNPROVEN, naming it."""

    def __init__(self, document: Mapping[str, Any], path: str = "") -> None:
        self._document = document
        self._path = path

    @staticmethod
    def load(path: Path) -> Plan:
        """ValueError where the file is not a plan."""
        document = json.loads(path.read_text(encoding="utf-8"))
        schema = document.get("schema") if isinstance(document, dict) else None
        if schema != "gpu-ami/plan/1":
            raise ValueError(f"{path}: expected schema gpu-ami/plan/1, found {schema}")
        return Plan(document)

    def __getitem__(self, key: str) -> Any:
        if key not in self._document:
            unproven(f"the plan has no {self._path}{key}")
        value = self._document[key]
        return Plan(value, f"{self._path}{key}.") if isinstance(value, dict) else value

    def __contains__(self, key: object) -> bool:
        return key in self._document

    def __iter__(self) -> Iterator[str]:
        return iter(self._document)

    def __len__(self) -> int:
        return len(self._document)

    def __eq__(self, other: object) -> bool:
        return bool(self._document == (other._document if isinstance(other, Plan) else other))

    __hash__ = None  # type: ignore[assignment]

    def plain(self) -> dict[str, Any]:
        """The same as an ordinary dict."""
        return dict(self._document)

    def instance_type(self, name: str) -> Plan:
        """The planned facts of one instance type."""
        for row in self["instance_types"]:
            if row["name"] == name:
                return Plan(row, f"instance_types[{name}].")
        unproven(f"the plan does not know instance type {name}")
