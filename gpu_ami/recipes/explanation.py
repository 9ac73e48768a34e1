"""Where each value of a merged recipe comes from, and what its constraints are pinned to."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from gpu_ami.recipes.facts import Facts
from gpu_ami.recipes.layers import Recipe
from gpu_ami.recipes.rules import ResolveContext
from gpu_ami.recipes.site import components_of
from gpu_ami.recipes.solver import Solution, solve


@dataclass(frozen=True)
class ExplainedValue:
    """One value of a recipe, or a conflict of one.

    key: its path (`telemetry.interval_s`). value: as YAML has it; None in a conflict. pinned: the version that a
    constraint stands for, if it is not the value. layer: the file that sets it, `--set`, or `base AMI`. source: where
    the pinned version or the conflict's rule stands; "" if neither applies. conflict: what it does not go together
    with, and nearest: what would end that; "" if there is none.
    """

    key: str
    value: object
    pinned: str | None
    layer: str
    source: str
    conflict: str = ""
    nearest: str = ""

    @property
    def text(self) -> str:
        """The value, and what it is pinned to, or the conflict, in one line."""
        if self.conflict:
            return f"CONFLICT: {self.conflict}"
        shown = ", ".join(map(str, self.value)) if isinstance(self.value, list) else str(self.value)
        return f"{shown} (pinned: {self.pinned})" if self.pinned else shown


def explain(recipe: Recipe, facts: Facts) -> list[ExplainedValue]:
    """Every value in the order of the layers' keys, then what the base AMI brings along, then the conflicts."""
    context = ResolveContext(recipe.values, facts, components_of(recipe.site))
    solution = solve(context)
    values = [_explained(recipe, facts, solution, key, value) for key, value in _leaves(recipe.values, "")]
    keys = {explained.key for explained in values}
    values += [
        ExplainedValue(f"{component}.version", version, None, "base AMI", context.base_ami_source)
        for component, version in _provided(context).items()
        if f"{component}.version" not in keys
    ]
    return values + [
        ExplainedValue(
            conflict.path, None, None, recipe.origin(conflict.path), conflict.source, conflict.text, conflict.nearest
        )
        for conflict in solution.conflicts
    ]


def _provided(context: ResolveContext) -> Mapping[str, str]:
    """Components of the base AMI → version; of the driver all branches, if it has several."""
    branches = "; ".join(map(str, context.driver_branches))
    return {**context.provided, "nvidia_driver": branches} if branches else context.provided


def _explained(recipe: Recipe, facts: Facts, solution: Solution, key: str, value: object) -> ExplainedValue:
    component, _, field = key.partition(".")
    version = solution.versions.get(component) if field == "version" else None
    source = facts.releases(component)[version]["source"] if version else ""
    return ExplainedValue(key, value, version if version != value else None, recipe.origin(key), source)


def _leaves(values: Mapping[str, object], path: str) -> Iterator[tuple[str, object]]:
    for key, value in values.items():
        below = f"{path}.{key}" if path else key
        if isinstance(value, dict):
            yield from _leaves(value, below)
        else:
            yield below, value
