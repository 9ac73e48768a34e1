"""The grammar of rules.yml and of the roles' footprint.yml: patterns of paths with owner, mode and content.

A pattern is a path in which `*` and `?` match within one name and `**` matches any depth. Every mistake of a file is
reported at once, with its place.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import yaml

from validator import remote
from validator.schema import Choice, Flag, Keys, ListOf, Mistake, OneOrMore, Text

KINDS = {"file": "f", "directory": "d", "link": "l", "fifo": "p", "socket": "s"}
CHECKS = (
    "alternative", "bytecode", "diversions", "dkms", "empty", "grubenv", "helper", "kept", "link", "module",
    "overrides", "package", "ramdisk", "skeleton", "unit", "written",
)  # fmt: skip
WHEN = ("built", "booted", "first_boot", "always")


Variables = Mapping[str, Sequence[str]]


class InvalidRules(ValueError):
    """A file of rules with mistakes: all of them, each with its place."""


@dataclass(frozen=True)
class Rule:
    """Files that are explained by one row.

    role: whose it is, "" for the system's own. modes, owners ("root:adm"): those allowed; none: root's, not setuid, not
    writable by every user. sha256, target: of the content, where it is known. check: one of CHECKS. when: on the
    image's files ("built"), on a machine that has booted ("booted"), for what the builder's first boot
    wrote and no role changed ("first_boot"), or "always". removed: the base AMI's file
    may also be gone.
    """

    name: str
    patterns: tuple[str, ...]
    reason: str = ""
    role: str = ""
    kinds: tuple[str, ...] = ("f",)
    modes: tuple[int, ...] = ()
    owners: tuple[str, ...] = ()
    sha256: tuple[str, ...] = ()
    target: str = ""
    check: str = ""
    when: str = "always"
    removed: bool = False
    expression: re.Pattern[str] = re.compile("")

    def matches(self, path: str) -> bool:
        return self.expression.fullmatch(path) is not None


@dataclass(frozen=True)
class Footprint:
    """What a role leaves beside the files of its planned packages.

    includes: roles that it runs.
    packages: installed for it although the plan does not name them (`*` allowed). removed_packages, removed: packages
    and paths of the base AMI that it removes. kernel_options: names; listeners: programs; mounts: mount points;
    setuid, capabilities: paths of programs with setuid or setgid bit, and with file capabilities.
    """

    role: str
    files: tuple[Rule, ...] = ()
    includes: tuple[str, ...] = ()
    packages: tuple[str, ...] = ()
    removed_packages: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    accounts: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    kernel_options: tuple[str, ...] = ()
    listeners: tuple[str, ...] = ()
    mounts: tuple[str, ...] = ()
    setuid: tuple[str, ...] = ()
    capabilities: tuple[str, ...] = ()


_LISTS = (
    "includes", "packages", "removed_packages", "removed", "accounts", "groups", "kernel_options", "listeners",
    "mounts", "setuid", "capabilities",
)  # fmt: skip
_ROW = Keys(
    {
        "name": Text("dpkg-info"),
        "reason": Text("dpkg writes it with every transaction"),
        "path": OneOrMore(Text("/etc/example/*")),
        "type": OneOrMore(Choice(tuple(KINDS))),
        "mode": OneOrMore(Text('"0644"', r"0[0-7]{3,4}")),
        "owner": OneOrMore(Text("root:adm")),
        "source": Text("files/example.conf"),
        "content": Text("option on", r"(?s).*"),
        "target": Text("/usr/lib/example"),
        "check": Choice(CHECKS),
        "when": Choice(WHEN),
        "removed": Flag(),
    },
    needed=("path",),
)
_RULE = replace(_ROW, needed=("path", "name", "reason"))
_RULES = ListOf(_RULE, unique=False)
_FOOTPRINT = Keys(
    {"files": ListOf(_ROW, unique=False, may_be_empty=True)} | {key: OneOrMore(Text("example")) for key in _LISTS}
)


def expression(pattern: str, variables: Variables = MappingProxyType({})) -> str:
    """A pattern as a regular expression; of a variable's values any matches, and nothing where it has none."""
    translated = {"**": ".*", "*": "[^/]*", "?": "[^/]"}
    for name, values in variables.items():
        translated[f"<{name}>"] = f"(?:{'|'.join(map(re.escape, values))})" if values else r"(?!)"
    parts = re.split(r"(\*\*|\*|\?|<\w+>)", pattern)
    return "".join(translated.get(part) or re.escape(part) for part in parts if part)


def load_rules(path: Path, variables: Variables = MappingProxyType({})) -> list[Rule]:
    """The rows of rules.yml. variables: values of <names> in patterns and owners. InvalidRules."""
    rows = _read_yaml(path)
    mistakes = list(_RULES.check(rows, ""))
    mistakes += _mistakes_of_rows(rows, "", _RULE, path.parent)
    _require_none(mistakes, path.name)
    return [_rule(row, "", path.parent, variables) for row in rows]


def load_footprint(path: Path, role: str, variables: Variables = MappingProxyType({})) -> Footprint:
    """A role's meta/footprint.yml; `source` names files of the role or of onhost/. InvalidRules.

    variables: values of <names> in its patterns.
    """
    document, folder = _read_yaml(path), path.parent.parent
    mistakes = list(_FOOTPRINT.check(document, ""))
    files = document.get("files", []) if isinstance(document, dict) else []
    mistakes += _mistakes_of_rows(files, "files", _ROW, folder)
    _require_none(mistakes, f"{role}/meta/footprint.yml")
    lists = {key: _several(document.get(key, [])) for key in _LISTS}
    return Footprint(role, tuple(_rule(row, role, folder, variables) for row in files), **lists)


def load_footprints(
    folders: Sequence[Path], roles: Sequence[str], variables: Variables = MappingProxyType({})
) -> tuple[dict[str, Footprint], list[str]]:
    """Footprints of the roles and of those that they include, by name, and the names of roles that have none.

    folders: of roles; the first one that has a role counts.
    """
    footprints: dict[str, Footprint] = {}
    without, pending = [], list(roles)
    while pending:
        role = pending.pop(0)
        folder = next((folder / role for folder in folders if (folder / role).is_dir()), None)
        path = folder / "meta" / "footprint.yml" if folder else None
        if role in footprints or role in without:
            continue
        if path is None or not path.is_file():
            without.append(role)
            continue
        footprints[role] = load_footprint(path, role, variables)
        pending += footprints[role].includes
    return footprints, without


def _read_yaml(path: Path) -> Any:
    try:
        return yaml.load(path.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRules(f"{path}: not YAML: {' '.join(str(error).split())}") from error


def _mistakes_of_rows(rows: object, path: str, kind: Keys, folder: Path) -> Iterator[Mistake]:
    """What is missing in the rows, and paths and sources that are not possible."""
    for number, row in enumerate(rows if isinstance(rows, list) else []):
        where = f"{path}[{number}]"
        if isinstance(row, dict):
            yield from kind.missing(row, where)
            yield from _mistakes_of_row(row, where, folder)


def _mistakes_of_row(row: Mapping[str, Any], where: str, folder: Path) -> Iterator[Mistake]:
    checked_links = row.get("type") == "link" and "check" in row
    paths = row.get("path", [])
    for pattern in paths if isinstance(paths, list) else [paths]:
        if isinstance(pattern, str) and (why := _too_wide(pattern, checked_links)):
            yield Mistake(f"{where}.path", f"{pattern}: {why}")
    if isinstance(row.get("source"), str) and not _sources(row, folder):
        yield Mistake(f"{where}.source", f"{row['source']}: no such file below {folder.name}/, nor in onhost/")


def _rule(row: Mapping[str, Any], role: str, folder: Path, variables: Variables) -> Rule:
    patterns = _several(row["path"])
    owners = _substituted(_several(row.get("owner", [])), variables)
    return Rule(
        name=row.get("name", ""),
        patterns=patterns,
        reason=row.get("reason", ""),
        role=role,
        kinds=tuple(KINDS[kind] for kind in _several(row.get("type", "link" if "target" in row else "file"))),
        modes=tuple(int(mode, 8) for mode in _several(row.get("mode", []))),
        owners=tuple(owner if ":" in owner else f"{owner}:{owner}" for owner in owners),
        sha256=_digests(row, folder),
        target=row.get("target", ""),
        check=row.get("check", ""),
        when=row.get("when", "always"),
        removed=row.get("removed", False),
        expression=re.compile("|".join(expression(text, variables) for text in patterns), re.DOTALL),
    )


def _substituted(values: Iterable[str], variables: Variables) -> list[str]:
    """The values with every value of the variables in them."""
    result = list(values)
    for name, known in variables.items():
        result = [text.replace(f"<{name}>", value) for text in result for value in (known or ("",))]
    return list(dict.fromkeys(result))


def _digests(row: Mapping[str, Any], folder: Path) -> tuple[str, ...]:
    if "content" in row:
        return (hashlib.sha256(row["content"].encode()).hexdigest(),)
    return tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in _sources(row, folder))


def _sources(row: Mapping[str, Any], folder: Path) -> list[Path]:
    if "source" not in row:
        return []
    programs = row["source"].startswith("onhost/")  # programs of ours; all else is a file of the role
    root = remote.PROGRAMS.parent if programs else folder
    return sorted(path for path in root.glob(row["source"]) if path.is_file())


def _too_wide(pattern: str, checked_links: bool) -> str:
    """Why a pattern matches too many paths; "" if it does not. Links whose target is checked may be anywhere."""
    if not pattern.startswith("/"):
        return "expected an absolute path"
    names = [name for name in pattern.split("/")[1:] if not re.fullmatch(r"[*?]+", name)]
    if len(names) < 2 and "*" in pattern:
        return "a pattern must name a directory below the first level"
    if not checked_links and re.fullmatch(
        r"/(etc|usr|var|opt|boot|srv|root|home)(/(bin|lib|lib64|sbin|share|local|cache|log))?/\*+", pattern
    ):
        return "the whole directory would be explained"
    return ""


def _several(value: str | list[str]) -> tuple[str, ...]:
    return (value,) if isinstance(value, str) else tuple(value)


def _require_none(mistakes: Sequence[Mistake], file: str) -> None:
    if mistakes:
        raise InvalidRules("\n".join(f"{file}: {mistake.path}: {mistake.message}" for mistake in mistakes))
