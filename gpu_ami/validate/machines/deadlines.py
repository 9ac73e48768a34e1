"""Deadlines of a machine: by instance type from variables/facts/deadlines.yml; the place overrides them."""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from typing import TYPE_CHECKING

from gpu_ami.recipes import load_facts

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.recipes.facts import Row


@dataclass(frozen=True)
class Deadlines:
    """Seconds for a boot, for a stop, and for metrics and logs to arrive in CloudWatch."""

    boot_seconds: float
    stop_seconds: float
    arrival_seconds: float


def deadlines(instance_type: str, place: Place | None = None) -> Deadlines:
    """The deadlines of an instance type; the facts' default for one that they do not name."""
    facts = load_facts().deadlines
    rows: list[Row] = [row for row in facts["types"] if fnmatch.fnmatchcase(instance_type, row["pattern"])]
    values = dict(facts["default"]) | dict(rows[0] if rows else {}) | dict(place.deadlines if place else {})
    return Deadlines(*(float(values[key]) for key in ("boot_seconds", "stop_seconds", "arrival_seconds")))
