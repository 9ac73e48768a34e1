"""Locks: `variables/locks/<image>.json`, what a recipe resolves to, and its source AMI by region.

A lock is committed and reviewed: a change of facts, layers or recipe that changes what is installed shows as a change
of the lock, and `gpu-ami plan --check` fails until it is made. It holds resolved values alone (versions, packages,
URLs, keys, names of instance types); `gpu-ami plan --explain` and `gpu-ami facts` have the sources, and what is known
of instance types, so a source that was read again changes no lock.

`gpu-ami plan --diff`: what a plan made now would change in its lock, and why; how the plans of two recipes differ.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, cast

from gpu_ami.errors import UsageError
from gpu_ami.files import read_document, read_json, write_json
from gpu_ami.plan.document import SourcePlan, digest_of
from gpu_ami.recipes import VARIABLES, Facts, Recipe, ResolvedPlan, facts_of, load_facts, read_recipe, resolve
from validator.plan_document import RecipeFile

SCHEMA = "gpu-ami/lock/2"
LOCKS = VARIABLES / "locks"
# Of a plan: what names the document, citations, and remarks (which quote sources and depend on their dates).
_NOT_RESOLVED = ("schema", "image", "digest", "sources", "notes")


def locks_folder(recipe: Path) -> Path:
    """The locks of a recipe's folder: `locks/` beside `recipes/`, or beside the recipe itself."""
    folder = recipe.parent
    if folder.name == "recipes":
        return folder.with_name("locks")
    # From within recipes/ its name is not in the path.
    return folder.absolute().with_name("locks") if folder.resolve().name == "recipes" else folder / "locks"


def lock_file(image: str, locks: Path = LOCKS) -> Path:
    """Where the lock of an image is."""
    return locks / f"{image}.json"


class LockedPlan(SourcePlan):
    """The resolved values of a plan; the keys that are read here."""

    recipe: RecipeFile


class Lock(TypedDict):
    """A lock file. source_amis: region → the AMI that was looked up there (id, name, created, through)."""

    schema: str
    image: str
    digest: str
    source_amis: dict[str, dict[str, str]]
    plan: LockedPlan


def load_lock(path: Path) -> Lock:
    """A committed lock. UsageError: missing, not a lock, of an older schema, or changed by hand."""
    command = f"plan --lock {path.stem}"
    lock = cast(Lock, read_document(path, SCHEMA, command))
    if digest_of(lock["plan"]) != lock["digest"]:
        raise UsageError(
            f"{path}: its content does not match its digest; it was changed after it was written",
            hint=f"change the recipe, then `gpu-ami {command}` writes a new one",
        )
    return lock


def resolved_values(document: ResolvedPlan) -> LockedPlan:
    """What a lock keeps of a plan's document; of each instance type its name."""
    kept = {key: value for key, value in document.items() if key not in _NOT_RESOLVED}
    return cast(LockedPlan, kept | {"instance_types": [row["name"] for row in document["instance_types"]]})


def render_lock(recipe: Path, locks: Path = LOCKS) -> Lock:
    """The lock as recipe and facts have it now, with the source AMIs that the committed one records."""
    plan = resolved_values(resolved_recipe(recipe)[1])
    # An older schema's record of source AMIs is read too: they were looked up once, and cannot be looked up again.
    committed = read_json(lock_file(recipe.stem, locks)) or {}
    return {
        "schema": SCHEMA,
        "image": recipe.stem,
        "digest": digest_of(plan),
        "source_amis": committed.get("source_amis", {}),
        "plan": plan,
    }


def write_lock(lock: Lock, locks: Path = LOCKS) -> Path:
    """Writes a lock; returns its path."""
    locks.mkdir(parents=True, exist_ok=True)
    path = lock_file(lock["image"], locks)
    write_json(path, lock)
    return path


def resolved_recipe(recipe: Path, overrides: tuple[str, ...] = ()) -> tuple[Recipe, ResolvedPlan]:
    """The merged recipe, and the plan's document as AWS itself would carry it out."""
    facts = facts_of(recipe)
    merged = read_recipe(recipe, facts, overrides)
    return merged, resolve(merged, facts)


def recorded_ami(document: ResolvedPlan, region: str, locks: Path = LOCKS) -> str | None:
    """The source AMI that the image's lock records for a region, if the plan still looks for it in the same way."""
    path = lock_file(str(document["image"]), locks)
    if not path.exists():
        return None
    lock = load_lock(path)
    recorded = lock["source_amis"].get(region)
    return str(recorded["id"]) if recorded and lock["plan"]["source_ami"] == document["source_ami"] else None


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
