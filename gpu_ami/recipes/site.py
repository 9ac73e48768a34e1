"""A site's own parts, in `site/` beside the recipe: roles, facts, checks and faults; one name in four places.

roles/NAME/ (with argument_specs) ↔ recipe and plan key NAME ↔ checks/test_NAME.py ↔ faults/NAME.yml: docs/site.md
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from gpu_ami.errors import UsageError
from gpu_ami.recipes.components import Registry, build_order, components, of_role

FOLDERS = ("roles", "checks", "faults")  # what a build, a proof and a trial of faults need; facts are in the plan


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


def components_of(site: Path | None) -> Registry:
    """All components: those of gpu-ami, then the site's roles. UsageError: a role of a name that is taken."""
    roles = site_roles(site)
    if taken := sorted(set(roles) & set(build_order())):
        raise UsageError(f"{site}/roles/{taken[0]}: gpu-ami has a role of this name", hint="rename the site's role")
    return {**components(), **{role: of_role(site / "roles", role) for role in roles}} if site else components()


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
