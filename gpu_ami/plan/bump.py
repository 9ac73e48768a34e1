"""Moves a recipe to newer versions that go together, by the same facts and rules that resolve it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from gpu_ami.errors import UsageError
from gpu_ami.recipes import Facts, Recipe, ResolvedPlan, components, facts_of, read_recipe, resolve, section
from gpu_ami.recipes.facts import tables

# Policy → kinds of driver branches that it takes (nvidia_drivers.yml, `kind`); none: every kind.
BumpPolicy = Literal["newest", "production", "lts", "patch"]
POLICIES: Mapping[str, tuple[str, ...]] = {"newest": (), "production": ("PB",), "lts": ("LTSB",), "patch": ()}
_DRIVER = "nvidia_driver"


@dataclass(frozen=True)
class Move:
    """One component. before, after: versions in the plan; equal where it stays. why: the source, or the conflict."""

    component: str
    before: str
    after: str
    why: str


@dataclass(frozen=True)
class Bump:
    """What a policy makes of a recipe. text: the recipe's new content; notes: those of the new plan alone."""

    recipe: Path
    policy: str
    moves: tuple[Move, ...]
    text: str
    notes: tuple[str, ...]

    @property
    def changed(self) -> tuple[Move, ...]:
        """The components that move."""
        return tuple(move for move in self.moves if move.before != move.after)


def propose(recipe: Path, policy: str = "newest") -> Bump:
    """The newest versions of a policy without conflict, of the components of which the recipe gives a version.

    No version becomes older. UsageError: the recipe does not resolve as it is.
    """
    facts = facts_of(recipe)
    merged = read_recipe(recipe, facts)
    current = resolve(merged, facts)
    names = [name for name in components.chosen() if merged.origins.get(f"{name}.version") == recipe.name]
    chosen = {name: str(section(current, name)["version"]) for name in names if name in current}
    search = _Search(recipe, facts, chosen, policy)
    document = search.pinned(search.together() or search.one_by_one() or current)
    moves = tuple(
        Move(name, before, after := str(section(document, name)["version"]), search.why(name, before, after, document))
        for name, before in chosen.items()
    )
    text = recipe.read_text(encoding="utf-8")
    for move in moves:
        text = with_version(text, move, _constraint(merged, move.component))
    notes = tuple(note for note in document["notes"] if note not in current["notes"])
    return Bump(recipe, policy, moves, text, notes)


def _constraint(merged: Recipe, component: str) -> str:
    return str(merged.values[component]["version"])


@dataclass
class _Search:
    """Choices for one recipe, each judged by resolving it."""

    recipe: Path
    facts: Facts
    current: Mapping[str, str]
    policy: str

    def _try(self, chosen: Mapping[str, str]) -> ResolvedPlan | str:
        """The plan with these versions, or the first conflict."""
        overrides = [f"{name}.version={version}" for name, version in chosen.items()]
        try:
            return resolve(read_recipe(self.recipe, self.facts, overrides), self.facts)
        except UsageError as error:
            return (error.details or (error.message,))[0].removeprefix("--set: ")

    def allowed(self, name: str) -> list[str]:
        """Versions that the policy allows, newest first; none is older than the current one."""
        before = self.current[name]
        known = tables.matching(self._open(name), self.facts.releases(name))
        return [one for one in known if tables.parts(one) > tables.parts(before) and self._is_of_policy(name, one)]

    def _is_of_policy(self, name: str, version: str) -> bool:
        if name != _DRIVER or self.policy == "patch":
            return True
        row = self.facts.driver_releases[version]
        kinds = POLICIES[self.policy]
        return row["end_of_support"] >= self.facts.read_on[:7] and (not kinds or row["kind"] in kinds)

    def together(self) -> ResolvedPlan | None:
        """The solver's choice for all components, driver branch by driver branch; None where one would become older."""
        others = {name: self._open(name) for name in self.current if name != _DRIVER}
        for driver in [*self._driver_branches(), None]:
            tried = self._try(others if driver is None else {_DRIVER: driver, **others})
            if isinstance(tried, str):
                continue
            after = {name: str(section(tried, name)["version"]) for name in self.current}
            older = {name for name, before in self.current.items() if tables.parts(after[name]) < tables.parts(before)}
            if older:
                tried = self._try({**after, **{name: self.current[name] for name in older}})
            if not isinstance(tried, str):
                return tried
        return None

    def pinned(self, document: ResolvedPlan) -> ResolvedPlan:
        """The same versions, each given exactly: the plan as the changed recipe resolves to it."""
        tried = self._try({name: str(section(document, name)["version"]) for name in self.current})
        return document if isinstance(tried, str) else tried

    def _open(self, name: str) -> str:
        return _same_branch(name, self.current[name]) if self.policy == "patch" else tables.NEWEST

    def _driver_branches(self) -> list[str]:
        if _DRIVER not in self.current:
            return []
        return list(dict.fromkeys(tables.branch(version) for version in self.allowed(_DRIVER)))

    def one_by_one(self) -> ResolvedPlan | None:
        """Each component in turn to the newest version that goes with the others as they are by then."""
        chosen = dict(self.current)
        found: ResolvedPlan | None = None
        for name in self.current:
            for version in self.allowed(name):
                tried = self._try({**chosen, name: version})
                if not isinstance(tried, str):
                    chosen[name], found = version, tried
                    break
        return found

    def why(self, name: str, before: str, after: str, document: ResolvedPlan) -> str:
        """The source of the new version; of one that stays, what the newest that is allowed conflicts with."""
        if before != after:
            return _sourced(self.facts, name, after)
        newer = self.allowed(name)
        if not newer:
            return "the newest that the policy allows"
        chosen = {one: str(section(document, one)["version"]) for one in self.current}
        tried = self._try({**chosen, name: newer[0]})
        return f"{newer[0]}: {tried}" if isinstance(tried, str) else f"{newer[0]} is less well established"


def _same_branch(name: str, version: str) -> str:
    """The constraint of a patch release: 580.178.04 → 580, 9.20.0 → 9.20, 12.9 → 12.9."""
    numbers = version.split(".")
    return numbers[0] if name == _DRIVER else ".".join(numbers[:2])


def _sourced(facts: Facts, name: str, version: str) -> str:
    row = facts.releases(name)[version]
    support = ""
    if name == _DRIVER:
        support = f"branch {tables.branch(version)} ({row['kind']}), supported until {row['end_of_support']}; "
    doubt = ", not verified" if row.get("unverified") else ""
    return f"{support}{row['source']} ({row['date']}{doubt})"


def with_version(text: str, move: Move, constraint: str) -> str:
    """The recipe's text with the new version, in the form of the old one: exact, or a branch of as many numbers."""
    if constraint == tables.NEWEST or move.before == move.after:
        return text
    exact = constraint == move.before
    version = move.after if exact else ".".join(move.after.split(".")[: len(constraint.split("."))])
    quoted = f'"{version}"' if re.fullmatch(r"\d+(\.\d+)?", version) else version
    places = [*_places(text, move.component)]
    if len(places) != 1:
        raise UsageError(
            f"{move.component}.version: expected one place in the recipe's text, got {len(places)}",
            hint="write it as `component: {version: X}` or as a key `version` below the component",
        )
    start, end = places[0]
    return text[:start] + quoted + text[end:]


def _places(text: str, component: str) -> Iterator[tuple[int, int]]:
    """Where the value of a component's version stands: in braces, or on a line of its own below it."""
    value = r"""("[^"\n]*"|'[^'\n]*'|[^\s,}#]+)"""
    inline = re.compile(rf"^{component}:[ ]*\{{[^}}\n]*?\bversion:[ ]*{value}", re.MULTILINE)
    block = re.compile(rf"^{component}:[ ]*(?:#[^\n]*)?\n(?:[ ]+[^\n]*\n)*?[ ]+version:[ ]*{value}", re.MULTILINE)
    for pattern in (inline, block):
        yield from (found.span(1) for found in pattern.finditer(text))


def markdown(bumps: list[Bump]) -> str:
    """A summary fit for the text of a pull request."""
    return "\n".join(line for bump in bumps for line in _section(bump))


def _section(bump: Bump) -> Iterator[str]:
    yield f"## {bump.recipe.stem}"
    if not bump.changed:
        yield f"Nothing to change by policy `{bump.policy}`."
    else:
        yield f"Policy `{bump.policy}`."
        yield ""
        yield "| component | now | proposed | source |"
        yield "|---|---|---|---|"
        yield from (f"| {move.component} | {move.before} | {move.after} | {move.why} |" for move in bump.changed)
    kept = [move for move in bump.moves if move.before == move.after]
    if kept:
        yield ""
        yield from (f"- {move.component} stays at {move.before}: {move.why}" for move in kept)
    if bump.notes:
        yield ""
        yield "New notes of the plan:"
        yield from (f"- {note}" for note in bump.notes)
    yield ""
