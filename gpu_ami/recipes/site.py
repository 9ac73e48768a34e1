"""A site's own parts, in `site/` beside the recipe: roles, facts, checks and faults; one name in four places.

roles/NAME/ (with argument_specs) ↔ recipe and plan key NAME ↔ checks/test_NAME.py ↔ faults/NAME.yml: docs/site.md
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import TypedDict

from gpu_ami.errors import UsageError
from gpu_ami.recipes.facts import read_yaml
from validator.schema import Choice, Flag, Integer, Keys, Kind, ListOf, MapOf, Text

FOLDERS = ("roles", "checks", "faults")  # what a build, a proof and a trial of faults need; facts are in the plan
_KINDS: Mapping[str, Kind] = {
    "str": Text("text"),
    "path": Text("/a/path"),
    "int": Integer(-(2**63), 2**63),
    "bool": Flag(),
    "list": ListOf(Text("text")),
    "dict": MapOf(r"\S+", "key", Text("text")),
}


def site_folder(recipe: Path) -> Path | None:
    """`site/` beside the recipe, beside its `recipes/`, or the one that holds `recipes/`; None: there is none."""
    folder = recipe.parent
    candidates = [folder / "site"]
    if folder.resolve().name == "recipes":
        above = folder.resolve().parent
        candidates += [above / "site", *([above] if above.name == "site" else [])]
    return next((path for path in candidates if path.is_dir()), None)


def site_roles(site: Path | None) -> tuple[str, ...]:
    """Names of the site's roles. UsageError: a name that cannot be a key of a recipe."""
    names = tuple(sorted(path.name for path in (site / "roles").glob("*/"))) if site else ()
    for name in names:
        if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
            raise UsageError(f"{site}/roles/{name}: a role's name has lower-case letters, digits and underscores")
    return names


class ArgumentSpec(TypedDict, total=False):
    """An option of a role (Ansible's argument_specs); the keys that are read here."""

    type: str
    choices: list[object]
    required: bool
    default: object


@cache
def _specs(site: Path, role: str) -> dict[str, ArgumentSpec]:
    """The role's options by key: monitoring_version of role monitoring is `version`."""
    path = site / "roles" / role / "meta" / "argument_specs.yml"
    document = read_yaml(path)
    try:
        options = dict(document["argument_specs"]["main"].get("options") or {})
    except (KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path}: expected argument_specs.main.options") from error
    if unprefixed := [name for name in options if not name.startswith(f"{role}_")]:
        raise UsageError(f"{path}: {unprefixed[0]}: expected a name that begins with {role}_")
    return {name.removeprefix(f"{role}_"): option or {} for name, option in options.items()}


def role_keys(site: Path, role: str) -> Keys:
    """The grammar of a site role's section, from its argument_specs."""
    specs = _specs(site, role)
    keys: dict[str, Kind] = {
        name: Choice(tuple(spec["choices"]))
        if spec.get("choices")
        else _KINDS.get(spec.get("type", "str"), Text("text"))
        for name, spec in specs.items()
    }
    return Keys(keys, needed=tuple(name for name, spec in specs.items() if spec.get("required")))


def role_defaults(site: Path, role: str) -> dict[str, object]:
    """Defaults of a site role's section, from its argument_specs."""
    return {name: spec["default"] for name, spec in _specs(site, role).items() if "default" in spec}


def in_order(roles: list[str], own: list[str]) -> list[str]:
    """The roles, with the site's roles that the recipe configures but does not list inserted before hygiene."""
    missing = [role for role in own if role not in roles]
    end = roles.index("hygiene") if "hygiene" in roles else len(roles)
    return [*roles[:end], *missing, *roles[end:]]


def files(site: Path) -> Iterator[Path]:
    """The files of roles, checks and faults, relative to the site's folder, in one order everywhere."""
    for folder in FOLDERS:
        for path in sorted((site / folder).rglob("*")):
            if path.is_file() and "__pycache__" not in path.parts:
                yield path.relative_to(site)


def digest(site: Path) -> str:
    """`sha256:` over names and contents of roles, checks and faults."""
    total = hashlib.sha256()
    for name in files(site):
        total.update(f"{name.as_posix()}\0{hashlib.sha256((site / name).read_bytes()).hexdigest()}\n".encode())
    return f"sha256:{total.hexdigest()}"
