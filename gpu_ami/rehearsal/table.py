"""The results of a run for people: text for a terminal, Markdown for a page."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from gpu_ami.errors import counted
from gpu_ami.rehearsal.results import by_result

if TYPE_CHECKING:
    from gpu_ami.rehearsal.results import Rehearsal

_HEADER = ("recipe", "base image", "source AMI", "seconds", "verdict", "checks", "simulated")
_MOST = 140  # characters of a reason in a line of the terminal; rehearsal.json has all


def text(rows: Sequence[Rehearsal]) -> str:
    """A line for each recipe, the reason of each that is no PASS, and how many have each result."""
    cells = [_HEADER, *(_cells(row) for row in rows)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEADER) - 1)]
    lines = ["  ".join([*map(str.ljust, line, widths), line[-1]]).rstrip() for line in cells]
    reasons = list(_reasons(rows))
    return "\n".join([*lines, *([""] * bool(reasons)), *reasons, "", summary(rows)])


def _reasons(rows: Sequence[Rehearsal]) -> Iterator[str]:
    """A line for each reason, with the recipes that have it."""
    images: dict[str, list[str]] = {}
    for row in rows:
        if row.reason:
            images.setdefault(f"{row.result}: {_shortened(row.reason)}", []).append(row.image)
    return (f"{', '.join(names)}: {reason}" for reason, names in images.items())


def markdown(rows: Sequence[Rehearsal]) -> str:
    """A table with the same columns, for docs/recipes.md or a job's page."""
    columns = [*_HEADER, "reason"]
    lines = [f"| {' | '.join(columns)} |", f"|{'---|' * len(columns)}"]
    for row in rows:
        cells = [" ".join(cell.split()).replace("|", "\\|") for cell in (*_cells(row), row.reason)]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, "", summary(rows)])


def summary(rows: Sequence[Rehearsal]) -> str:
    """`31 recipes: 20 PASS, 1 FAIL, 10 NO BASE IMAGE`, and how many an earlier run had judged."""
    groups = ", ".join(f"{len(members)} {result}" for result, members in by_result(rows).items())
    unchanged = sum(row.unchanged for row in rows)
    earlier = f"; {unchanged} judged by an earlier run, unchanged since (--fresh judges them again)" * bool(unchanged)
    return f"{counted(len(rows), 'recipe')}: {groups}{earlier}"


def _cells(row: Rehearsal) -> tuple[str, ...]:
    verdict = f"{row.result} on {row.instance_type}" if row.instance_type and row.checks else row.result
    seconds = f"{row.seconds:.0f}" if row.seconds else "-"
    return (
        row.image,
        row.base_image or "-",
        row.source_ami or "-",
        seconds,
        verdict,
        row.checks or "-",
        ", ".join(row.simulated) or "-",
    )


def _shortened(reason: str) -> str:
    line = " ".join(reason.split())
    return line if len(line) <= _MOST else f"{line[: _MOST - 1]}…"
