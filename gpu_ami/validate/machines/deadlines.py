"""Deadlines of a machine: by instance type from variables/facts/deadlines.yml; the place overrides them."""

from __future__ import annotations

import difflib
import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING

from gpu_ami.errors import UsageError
from gpu_ami.recipes import load_facts

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.recipes.facts import Row


MOST_SECONDS = 86400  # as in the grammar of a place


@dataclass(frozen=True)
class Deadlines:
    """Seconds for a boot, for a stop, and for metrics and logs to arrive in CloudWatch."""

    boot_seconds: float
    stop_seconds: float
    arrival_seconds: float


def names() -> list[str]:
    """What has a deadline: boot, stop, arrival."""
    return [field.name.removesuffix("_seconds") for field in fields(Deadlines)]


def parse_deadlines(options: Sequence[str]) -> dict[str, int]:
    """`NAME=SECONDS` of the command line as the place's `deadlines` has them. UsageError names every mistake."""
    mistakes, parsed = [], {}
    for option in options:
        name, _, seconds = option.partition("=")
        if name not in names():
            near = difflib.get_close_matches(name, names(), n=1)
            guess = f"; did you mean {near[0]}?" if near else ""
            mistakes.append(f"--deadline {option}: unknown deadline {name!r}, expected {', '.join(names())}{guess}")
        elif not (seconds.isascii() and seconds.isdigit() and 0 < int(seconds) <= MOST_SECONDS):
            mistakes.append(f"--deadline {option}: expected seconds from 1 to {MOST_SECONDS}, got {seconds!r}")
        elif f"{name}_seconds" in parsed:
            mistakes.append(f"--deadline {option}: {name} is given twice")
        else:
            parsed[f"{name}_seconds"] = int(seconds)
    if mistakes:
        raise UsageError(
            mistakes[0], details=mistakes[1:], hint="--deadline boot=1500; see variables/facts/deadlines.yml"
        )
    return parsed


def deadlines(instance_type: str, place: Place | None = None) -> Deadlines:
    """The deadlines of an instance type; the facts' default for one that they do not name."""
    facts = load_facts().deadlines
    rows: list[Row] = [row for row in facts["types"] if fnmatch.fnmatchcase(instance_type, row["pattern"])]
    values = dict(facts["default"]) | dict(rows[0] if rows else {}) | dict(place.deadlines if place else {})
    return Deadlines(*(float(values[key]) for key in ("boot_seconds", "stop_seconds", "arrival_seconds")))
