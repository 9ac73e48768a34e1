"""Security bulletins of what a plan installs (facts/advisories.yml): noted, or refused where the recipe asks for it.

Of container runtimes, which no recipe chooses: whether an image's packages have the fixes.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from gpu_ami.recipes.facts import Facts, Row, at_least, branch, parts
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext, Rule

SEVERITIES = ("medium", "high", "critical")


def open_advisories(context: ResolveContext, component: str, version: str) -> Iterator[tuple[str, str, Row]]:
    """Bulletins whose fix a version lacks: its name in the facts, what to say of it, and its row."""
    for name, row in context.facts.advisories["rows"].items():
        if row["component"] != component:
            continue
        fixed = row["fixed"].get(branch(version))
        if fixed and not at_least(version, str(fixed)):
            fix = f"fixed in {fixed}"
        elif not fixed and component == "nvidia_driver" and _had_ended(context, version, row):
            fix = f"fixed in no release of R{branch(version)}, whose support had ended"
        else:
            continue
        yield name, f"{row['cve']} ({row['severity']}) is {fix}", row


def _had_ended(context: ResolveContext, version: str, row: Row) -> bool:
    """Whether a bulletin names no fix of a driver's branch because the branch had ended: newer branches have one."""
    of_branch = context.facts.nvidia_drivers["branches"].get(branch(version), {})
    is_older = int(branch(version)) < max(map(int, row["fixed"]))
    return is_older and str(of_branch.get("end_of_support", "9999")) < str(row.get("published", ""))


def runtime_advisories(facts: Facts, system: str, packages: Mapping[str, str]) -> Iterator[tuple[str, str, bool, Row]]:
    """Bulletins of container runtimes whose fix an image's packages lack: package, what to say, whether it is certain.

    packages: name → the whole version. Not certain: the version is older than upstream's fix, and the system's vendor
    may have put the fix into it.
    """
    table = facts.advisories["runtimes"]
    for name, full in packages.items():
        release = full.rpartition(":")[2]  # without the epoch
        upstream = re.split(r"[-+~]", release, maxsplit=1)[0]
        for row in table["rows"].values():
            if name not in table["names"][row["project"]] or not upstream[:1].isdigit():
                continue
            own = row.get("packages", {}).get(system)
            if not _is_before(upstream, row["fixed"]) or (own and parts(release) >= parts(own)):
                continue
            fix = own or " and ".join(row["fixed"])
            yield name, f"{row['cve']} ({row['severity']}) is fixed in {fix}", bool(own), row


def _is_before(version: str, fixed: Sequence[str]) -> bool:
    """Whether a release is older than the fix of its series; of a series without one, than the newest fix."""
    of_series = [fix for fix in fixed if parts(fix)[:2] == parts(version)[:2]]
    return not at_least(version, of_series[0] if of_series else max(fixed, key=parts))


def notes(context: ResolveContext, versions: Mapping[str, str]) -> Iterator[str]:
    """Of all chosen and provided versions, one each."""
    for component, version in versions.items():
        lacking = [f"{text} ({name})" for name, text, _ in open_advisories(context, component, version)]
        if lacking:
            fixes = (
                "the fix of a security bulletin" if len(lacking) == 1 else f"fixes of {len(lacking)} security bulletins"
            )
            shown = "; ".join(lacking)
            yield f"{context.label(component)} {version} lacks {fixes}: {shown}: variables/facts/advisories.yml"


def advisory_rule(component: str) -> tuple[tuple[str, ...], Rule]:
    """The rule of `refuse_advisories`, with the component's name."""

    def has_fixes(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
        least = context.values.get("refuse_advisories")
        version = chosen[component]
        for _, text, row in open_advisories(context, component, version) if least else ():
            if SEVERITIES.index(row["severity"]) >= SEVERITIES.index(str(least)):
                told = f"{context.label(component)} {version}: {text}"
                yield Conflict(f"{component}.version", told, row["source"], (component,))

    return (component,), has_fixes
