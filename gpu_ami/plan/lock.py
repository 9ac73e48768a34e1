"""Locks: `variables/locks/<image>.json`, what a recipe resolves to, and its source AMI by region.

A lock is committed and reviewed: a change of facts, layers or recipe that changes what is installed shows as a change
of the lock, and `gpu-ami plan --check` fails until it is made. It holds resolved values alone (versions, packages,
URLs, keys, names of instance types); `gpu-ami plan --explain` and `gpu-ami facts` have the sources, and what is known
of instance types, so a source that was read again changes no lock.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, cast

from gpu_ami.errors import UsageError
from gpu_ami.files import read_document, read_json, write_json
from gpu_ami.plan.document import digest_of
from gpu_ami.plan.source_ami import SourcePlan
from gpu_ami.recipes import VARIABLES, Recipe, ResolvedPlan, facts_of, read_recipe, resolve
from validator.plan_document import RecipeFile

SCHEMA = "gpu-ami/lock/2"
LOCKS = VARIABLES / "locks"
# Of a plan: what names the document, citations, and remarks (which quote sources and depend on their dates).
_NOT_RESOLVED = ("schema", "image", "digest", "sources", "notes")


def locks_folder(recipe: Path) -> Path:
    """The locks of a recipe's folder: `locks/` beside `recipes/`, or beside the recipe itself."""
    folder = recipe.parent
    return folder.with_name("locks") if folder.resolve().name == "recipes" else folder / "locks"


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
