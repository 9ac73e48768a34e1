"""State Manager associations: a document that runs on each managed node that the targets select, once.

AWS runs it when the association is made and on each node that appears later ("About targets and rate controls in State
Manager associations", read 2026-11-23). Schedules are not kept: nothing here runs twice on a node.
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Association:
    """ran_on: the nodes on which it has been run."""

    document: str
    name: str
    targets: Sequence[Mapping[str, Any]]
    parameters: Mapping[str, Sequence[str]]
    created: float
    ran_on: set[str] = field(default_factory=set)
    id: str = field(default_factory=lambda: str(uuid.uuid4()))

    def describe(self) -> dict[str, Any]:
        """The fields that Association and AssociationDescription share."""
        return {
            "AssociationId": self.id, "AssociationName": self.name, "AssociationVersion": "1", "Name": self.document,
            "DocumentVersion": "$DEFAULT", "Targets": [dict(each) for each in self.targets],
            "Overview": {"Status": "Success" if self.ran_on else "Pending"},
        }  # fmt: skip

    def is_selected(self, filters: Sequence[Mapping[str, str]]) -> bool:
        """By the filters of ListAssociations."""
        fields = {"AssociationName": self.name, "Name": self.document, "AssociationId": self.id}
        return all(fields.get(each["key"]) == each["value"] for each in filters)
