"""Security bulletins of what a plan installs (facts/advisories.yml): noted, or refused where the recipe asks for it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_ami.recipes.facts import Row, at_least, branch, parts
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext, Rule

SEVERITIES = ("medium", "high", "critical")


def open_advisories(context: ResolveContext, component: str, version: str) -> Iterator[tuple[str, Row]]:
    """Bulletins whose fix a version lacks: what to say of each, and its row. A branch that none names has none."""
    for row in context.facts.advisories["rows"].values():
        if row["component"] != component:
            continue
        fixed = row.get("fixed", {}).get(branch(version))
        if fixed and not at_least(version, str(fixed)):
            fix = f"fixed in {fixed}"
        elif "last_affected" in row and parts(version) <= parts(str(row["last_affected"])):
            fix = f"fixed after {row['last_affected']}"
        else:
            continue
        yield f"{context.label(component)} {version}: {row['cve']} ({row['severity']}) is {fix}", row


def notes(context: ResolveContext, versions: Mapping[str, str]) -> Iterator[str]:
    """Of all chosen and provided versions."""
    for component, version in versions.items():
        for text, row in open_advisories(context, component, version):
            yield f"{text} ({row['source']})"


def advisory_rule(component: str) -> tuple[tuple[str, ...], Rule]:
    """The rule of `refuse_advisories`, with the component's name."""

    def has_fixes(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
        least = context.values.get("refuse_advisories")
        for text, row in open_advisories(context, component, chosen[component]) if least else ():
            if SEVERITIES.index(row["severity"]) >= SEVERITIES.index(str(least)):
                yield Conflict(f"{component}.version", text, row["source"], (component,))

    return (component,), has_fixes
