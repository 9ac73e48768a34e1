"""Combinations that are known not to work (facts/incompatibilities.yml): refused, unless the recipe accepts them."""

from __future__ import annotations

from collections.abc import Iterator

from gpu_ami.recipes.facts import Row, at_least
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext, Rule


def is_accepted(context: ResolveContext, name: str) -> bool:
    return name in context.values.get("accept", ())


def refusal(context: ResolveContext, name: str, what: str, nearest: str = "") -> Iterator[Conflict]:
    """The conflict of a row; none where the recipe accepts it. what: the combination that the plan would have."""
    row = context.facts.incompatibilities["rows"][name]
    if is_accepted(context, name):
        return
    component = row["change"]
    text = f"{what}: {row['why']}. It ends with {row['ends']}. `accept: [{name}]` builds it all the same"
    is_version = component in row["versions"]
    yield Conflict(
        f"{component}.version", text, row["source"], (component,) if is_version and not nearest else (), nearest
    )


def notes(context: ResolveContext, chosen: Assignment) -> Iterator[str]:
    """What the recipe accepts and the plan has, and names in `accept` that nothing of the plan needs."""
    for name in context.values.get("accept", ()):
        row = context.facts.incompatibilities["rows"][name]
        if not row["versions"] or _applies(context, row, chosen):
            yield f"accepted: {name}: {row['why']} ({row['source']})"
        else:
            yield f"accept names {name}, which this plan does not have"


def _rule(names: tuple[str, ...]) -> Rule:
    """Of the rows between these components. Rules are judged by the components that they are between."""

    def known_incompatibility(context: ResolveContext, chosen: Assignment) -> Iterator[Conflict]:
        for name, row in context.facts.incompatibilities["rows"].items():
            if set(row["versions"]) == set(names) and _applies(context, row, chosen):
                yield from refusal(context, name, _combination(context, row, chosen))

    return known_incompatibility


def _applies(context: ResolveContext, row: Row, chosen: Assignment) -> bool:
    for component, limits in row["versions"].items():
        version = chosen.get(component)
        if version is None or component in context.provided:
            return False
        if "from" in limits and not at_least(version, limits["from"]):
            return False
        if "below" in limits and at_least(version, limits["below"]):
            return False
    gpus = {gpu.row["name"] for gpu in context.gpus}
    return (
        ("gpus" not in row or bool(gpus & set(row["gpus"])))
        and context.os_name in row.get("systems", [context.os_name])
        and context.values["architecture"] in row.get("architectures", [context.values["architecture"]])
        and ("driver_source" not in row or context.driver_source == row["driver_source"])
    )


def _combination(context: ResolveContext, row: Row, chosen: Assignment) -> str:
    parts = [f"{context.label(component)} {chosen[component]}" for component in row["versions"]]
    if "gpus" in row:
        parts.append(", ".join(gpu.named for gpu in context.gpus if gpu.row["name"] in row["gpus"]))
    return " with ".join([*parts, *row.get("systems", [])])


INCOMPATIBILITY_RULES = tuple(
    (names, _rule(names)) for names in (("nvidia_driver", "efa"), ("container_toolkit",), ("nvidia_driver",))
)
