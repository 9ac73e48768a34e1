"""A comparison of two images as text, Markdown, HTML or JSON."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict

from gpu_ami.release.comparison import Comparison
from gpu_ami.report import templating

FORMATS = ("text", "markdown", "html", "json")
_MOST = 40  # rows of a section in text and Markdown; HTML and JSON have all


def text(comparison: Comparison) -> str:
    """For a terminal."""
    return "\n".join(_lines(comparison))


def _lines(comparison: Comparison) -> Iterator[str]:
    yield f"{comparison.before} → {comparison.after}"
    for section in comparison.sections:
        if section.missing:
            yield f"\n{section.name}: not compared: {section.missing}"
        elif section.rows:
            yield f"\n{section.name}:"
            for row in section.rows[:_MOST]:
                yield f"  {row.subject}: {row.before or 'nothing'} → {row.after or 'nothing'}"
            if len(section.rows) > _MOST:
                yield f"  and {len(section.rows) - _MOST} more (--format html or json has all)"
    same = [section.name for section in comparison.sections if not section.rows and not section.missing]
    if same:
        yield f"\nthe same: {', '.join(same)}"
    if comparison.remarks:
        yield "\nnot at hand:"
        yield from (f"  {remark}" for remark in comparison.remarks)


def markdown(comparison: Comparison, heading: str = "") -> str:
    """For a release page or a pull request."""
    lines = [f"# {heading or f'{comparison.before} → {comparison.after}'}"]
    for section in comparison.sections:
        if section.rows:
            lines += ["", f"## {section.title}", "", "| | before | after |", "|---|---|---|"]
            lines += [
                f"| {templating.cell(row.subject, 200)} | {_value(row.before)} | {_value(row.after)} |"
                for row in section.rows[:_MOST]
            ]
            if len(section.rows) > _MOST:
                lines += ["", f"and {len(section.rows) - _MOST} more"]
    if comparison.is_empty:
        lines += ["", "No difference in what could be compared."]
    open_points = [f"{section.name}: {section.missing}" for section in comparison.sections if section.missing]
    if open_points or comparison.remarks:
        lines += ["", "## Not compared", ""]
        lines += [f"- {templating.cell(line, 300)}" for line in (*open_points, *comparison.remarks)]
    return "\n".join(lines)


def _value(text: str) -> str:
    return str(templating.cell(text or "-"))


def notes(comparison: Comparison) -> str:
    """Release notes: what changed since the image before, in Markdown."""
    since = f"changes since {comparison.before}" if comparison.before else "first image"
    return markdown(comparison, f"{comparison.after}: {since}")


def html(comparison: Comparison) -> str:
    """A page that needs nothing else."""
    return templating.render("diff.html.j2", comparison=comparison)


def to_json(comparison: Comparison) -> dict[str, object]:
    return asdict(comparison)
