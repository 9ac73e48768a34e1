"""Locks: `variables/locks/<image>.json`, every exact version, URL and key of an image, and its source AMI by region.

A lock is the plan as AWS would carry it out, committed and reviewed: a change of facts, layers or recipe that changes
what is installed shows as a change of the lock, and `gpu-ami plan --check` fails until it is made.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.errors import UsageError
from gpu_ami.plan import Plan, sealed, write_json
from gpu_ami.recipes.facts import VARIABLES, Facts, load_facts
from gpu_ami.recipes.layers import Recipe, read_recipe
from gpu_ami.recipes.resolve import resolve

if TYPE_CHECKING:
    from gpu_ami.aws import Cloud

SCHEMA = "gpu-ami/lock/1"
LOCKS = VARIABLES / "locks"
# Found out again with every plan; a change of them alone is no change of the image.
_CITATIONS = ("digest", "sources", "recipe")


@dataclass(frozen=True)
class Change:
    """One value of the plan that is not what the lock says. None: not there."""

    path: str
    locked: object
    planned: object
    why: str

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.locked)} → {_shown(self.planned)}  ({self.why})"


def lock_file(image: str, locks: Path = LOCKS) -> Path:
    return locks / f"{image}.json"


def load_lock(path: Path) -> dict[str, Any]:
    """UsageError where it is missing, not a lock, or changed by hand."""
    try:
        lock = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise UsageError(f"{path}: no such lock", hint=f"gpu-ami plan --lock {path.stem} writes it") from error
    except (OSError, ValueError) as error:
        raise UsageError(f"{path}: not a lock: {error}", hint="gpu-ami plan --lock writes a new one") from error
    if not isinstance(lock, dict) or lock.get("schema") != SCHEMA:
        raise UsageError(f"{path}: expected schema {SCHEMA}", hint="gpu-ami plan --lock writes a new one")
    if sealed(lock["plan"])["digest"] != lock["plan_digest"]:
        raise UsageError(f"{path}: changed by hand: its plan does not match its digest", hint="gpu-ami plan --lock")
    return lock


def locked_plan(image: str, locks: Path = LOCKS) -> Plan:
    """The plan of a committed lock."""
    return Plan(load_lock(lock_file(image, locks))["plan"])


def render_lock(recipe: Path, locks: Path = LOCKS) -> dict[str, Any]:
    """The lock as recipe and facts have it now, with the source AMIs that the committed one records."""
    plan = sealed(_document(recipe)[1])
    path = lock_file(recipe.stem, locks)
    kept = load_lock(path)["source_amis"] if path.exists() else {}
    return {
        "schema": SCHEMA,
        "image": recipe.stem,
        "plan_digest": plan["digest"],
        "source_amis": kept,
        "plan": plan,
    }


def write_lock(lock: Mapping[str, Any], locks: Path = LOCKS) -> Path:
    locks.mkdir(parents=True, exist_ok=True)
    path = lock_file(str(lock["image"]), locks)
    write_json(path, lock)
    return path


def changes(recipe: Path, locks: Path = LOCKS) -> list[Change]:
    """What a plan made now would change, and why. Empty: the lock stands."""
    asked, document = _document(recipe)
    lock = load_lock(lock_file(recipe.stem, locks))
    found = [
        Change(path, locked, planned, _why(path, asked, lock["plan"], load_facts()))
        for path, locked, planned in _differences(lock["plan"], document, "")
    ]
    if not found and lock["plan_digest"] != sealed(document)["digest"]:
        found.append(Change("sources", "as locked", "as cited now", "a citation, or the recipe's text, changed"))
    return found


def _document(recipe: Path) -> tuple[Recipe, dict[str, Any]]:
    facts = load_facts()
    asked = read_recipe(recipe, facts)
    return asked, resolve(asked, facts)


def _differences(locked: Any, planned: Any, path: str) -> Iterator[tuple[str, Any, Any]]:
    """Path, locked and planned value of everything that differs, as deep down as both have the same shape."""
    if isinstance(locked, dict) and isinstance(planned, dict):
        for key in [*locked, *(key for key in planned if key not in locked)]:
            if path or key not in _CITATIONS:
                below = f"{path}.{key}" if path else key
                yield from _differences(locked.get(key), planned.get(key), below)
    elif isinstance(locked, list) and isinstance(planned, list) and _are_lines(locked) and _are_lines(planned):
        yield from ((path, line, None) for line in locked if line not in planned)
        yield from ((path, None, line) for line in planned if line not in locked)
        if sorted(locked) == sorted(planned) and locked != planned:
            yield path, locked, planned
    elif isinstance(locked, list) and isinstance(planned, list) and len(locked) == len(planned):
        for index, (before, after) in enumerate(zip(locked, planned, strict=True)):
            yield from _differences(before, after, f"{path}[{index}]")
    elif locked != planned:
        yield path, locked, planned


def _are_lines(value: list[Any]) -> bool:
    return all(isinstance(one, str) for one in value)


def _why(path: str, asked: Recipe, locked: Mapping[str, Any], facts: Facts) -> str:
    """The nearest reason: a wish that now has another answer, the recipe itself, or the facts below it."""
    component = path.partition(".")[0]
    section = asked.values.get(component)
    wish = section.get("version") if isinstance(section, dict) else None
    if asked.sha256 != locked["recipe"]["sha256"]:
        return f"{asked.file.name} changed"
    if path == f"{component}.version" and wish is not None and wish not in _known(facts, component):
        return f"{asked.origin(path)} asks for {wish}, and the facts have another answer now"
    return f"facts or {asked.origin(path)} changed"


def _known(facts: Facts, component: str) -> Mapping[str, Any]:
    try:
        return facts.releases(component)
    except (AttributeError, KeyError):
        return {}


def _shown(value: object) -> str:
    if value is None:
        return "nothing"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else f"{text[:77]}..."


def recorded_ami(document: Mapping[str, Any], region: str, locks: Path = LOCKS) -> str | None:
    """The source AMI that the image's lock records for a region, if the plan still looks for it in the same way."""
    path = lock_file(str(document["image"]), locks)
    if not path.exists():
        return None
    lock = load_lock(path)
    recorded = lock["source_amis"].get(region)
    return str(recorded["id"]) if recorded and lock["plan"]["source_ami"] == document["source_ami"] else None


def resolve_source_ami(cloud: Cloud, plan: Mapping[str, Any]) -> dict[str, str]:
    """The AMI that a plan's `source_ami` means in the cloud's region now: id, name, created, through.

    An SSM public parameter is asked where there is one, else the newest of the owner's with the name. UsageError: none.
    """
    source = plan["source_ami"]
    if "id" in source:
        ami, through = source["id"], "id"
    elif "ssm" in source:
        ami, through = _parameter(cloud, source["ssm"]), f"ssm:{source['ssm']}"
    else:
        ami, through = _newest(cloud, plan), f"{source['owner']}:{source['name']}"
    image = cloud.image(ami)
    if image is None:
        raise UsageError(f"source AMI {ami} ({through}) is not in {cloud.place.region}")
    return {"id": ami, "name": image.get("Name", ""), "created": image.get("CreationDate", ""), "through": through}


def _parameter(cloud: Cloud, name: str) -> str:
    ssm = cloud.client("ssm")
    try:
        return str(ssm.get_parameter(Name=name)["Parameter"]["Value"])
    except ssm.exceptions.ParameterNotFound as error:
        hint = "set source_ami in the --where file, or owner and name in the recipe"
        raise UsageError(f"no SSM parameter {name} in {cloud.place.region}", hint=hint) from error


def _newest(cloud: Cloud, plan: Mapping[str, Any]) -> str:
    source = plan["source_ami"]
    found = cloud.ec2.describe_images(
        Owners=[source["owner"]],
        Filters=[
            {"Name": "name", "Values": [source["name"]]},
            {"Name": "architecture", "Values": [plan["architecture"]]},
            {"Name": "state", "Values": ["available"]},
        ],
    )["Images"]
    if not found:
        raise UsageError(
            f"no AMI of {source['owner']} named {source['name']} ({plan['architecture']}) in {cloud.place.region}",
            hint="set source_ami in the --where file",
        )
    return str(max(found, key=lambda image: image.get("CreationDate", ""))["ImageId"])
