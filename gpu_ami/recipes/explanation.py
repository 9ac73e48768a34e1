"""Where each value of a merged recipe comes from, and what its constraints are pinned to."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpu_ami.recipes.facts import Facts
from gpu_ami.recipes.layers import Recipe
from gpu_ami.recipes.resolve_context import World
from gpu_ami.recipes.solver import solve


def explain(recipe: Recipe, facts: Facts) -> list[tuple[str, str, str]]:
    """Key path, value, origin of every value, in the order of the layers' keys; conflicts are marked where they are."""
    world = World(recipe.values, facts)
    solution = solve(world)
    rows = _leaves(recipe, recipe.values, "")
    found = []
    for path, value, origin in rows:
        component, _, key = path.partition(".")
        pinned = solution.versions.get(component)
        shown = f"{value} (pinned: {pinned})" if key == "version" and pinned and pinned != value else str(value)
        found.append((path, shown, origin))
    asked = {path for path, _, _ in rows}
    for component, version in world.provided.items():
        if f"{component}.version" not in asked:
            found.append((f"{component}.version", version, f"base AMI of {world.node_name} {world.node_version}"))
    for conflict in solution.conflicts:
        found.append((conflict.path, f"CONFLICT: {conflict.text}", recipe.origin(conflict.path)))
    return found


def _leaves(recipe: Recipe, values: Mapping[str, Any], path: str) -> list[tuple[str, str, str]]:
    found: list[tuple[str, str, str]] = []
    for key, value in values.items():
        below = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            found += _leaves(recipe, value, below)
        else:
            shown = ", ".join(str(item) for item in value) if isinstance(value, list) else value
            found.append((below, str(shown), recipe.origin(below)))
    return found
