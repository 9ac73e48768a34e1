"""What a plan made now would change in its lock, and why; how the plans of two recipes differ."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_ami.plan.lock import LOCKS, LockedPlan, load_lock, lock_file, resolved_recipe, resolved_values
from gpu_ami.recipes import Facts, Recipe, load_facts


@dataclass(frozen=True)
class Change:
    """One value that differs. locked, planned: before and after; None: not there. why: empty where nothing is known."""

    path: str
    locked: object
    planned: object
    why: str

    def __str__(self) -> str:
        why = f"  ({self.why})" if self.why else ""
        return f"{self.path}: {_shown(self.locked)} → {_shown(self.planned)}{why}"


def changes(recipe: Path, locks: Path = LOCKS, overrides: tuple[str, ...] = ()) -> list[Change]:
    """What a plan made now would change in the image's lock, and why. Empty: the lock is current."""
    merged, document = resolved_recipe(recipe, overrides)
    lock = load_lock(lock_file(recipe.stem, locks))
    differing = [
        Change(path, locked, planned, _why(path, merged, lock["plan"], load_facts()))
        for path, locked, planned in value_differences(lock["plan"], resolved_values(document), "")
    ]
    if not differing and lock["plan"]["recipe"] != document["recipe"]:
        why = "the recipe's text changed; it resolves to the same values"
        differing.append(Change("recipe", lock["plan"]["recipe"]["file"], document["recipe"]["file"], why))
    return differing


def compare(first: Path, second: Path, overrides: tuple[str, ...] = ()) -> list[Change]:
    """How the plan of a second recipe differs from that of the first, and which layer of it says so."""
    before = resolved_values(resolved_recipe(first, overrides)[1])
    merged, document = resolved_recipe(second, overrides)
    return [
        Change(path, old, new, merged.origin(path) if path in merged.origins else "")
        for path, old, new in value_differences(before, resolved_values(document), "")
    ]


def value_differences(before: Any, after: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Path, old and new value of everything that differs, as deep down as both have the same shape.

    path: of the values themselves, "" for whole documents, whose section `recipe` is left out.
    """
    if isinstance(before, dict) and isinstance(after, dict):
        for key in [*before, *(key for key in after if key not in before)]:
            if path or key != "recipe":
                below = f"{path}.{key}" if path else key
                yield from value_differences(before.get(key), after.get(key), below)
    elif isinstance(before, list) and isinstance(after, list) and _are_lines(before) and _are_lines(after):
        yield from ((path, line, None) for line in before if line not in after)
        yield from ((path, None, line) for line in after if line not in before)
        if sorted(before) == sorted(after) and before != after:
            yield path, before, after
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for index, (old, new) in enumerate(zip(before, after, strict=True)):
            yield from value_differences(old, new, f"{path}[{index}]")
    elif before != after:
        yield path, before, after


def _are_lines(value: list[Any]) -> bool:
    return all(isinstance(item, str) for item in value)


def _why(path: str, recipe: Recipe, locked: LockedPlan, facts: Facts) -> str:
    """The nearest reason: --set, the recipe itself, a constraint that now has another answer, or the facts below it."""
    component = path.partition(".")[0]
    section = recipe.values.get(component)
    constraint = section.get("version") if isinstance(section, dict) else None
    origin = recipe.origin(path)
    if origin == "--set":
        return origin
    if recipe.sha256 != locked["recipe"]["sha256"]:
        return f"{recipe.file.name} changed"
    if path == f"{component}.version" and constraint is not None and constraint not in _known(facts, component):
        return f"{origin} asks for {constraint}, which the facts now resolve differently"
    return f"facts or {origin} changed"


def _known(facts: Facts, component: str) -> Mapping[str, object]:
    try:
        return facts.releases(component)
    except (AttributeError, KeyError):
        return {}


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."
