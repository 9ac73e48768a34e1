"""The grammar of rules.yml and of the roles' footprint.yml: patterns of paths with owner, mode and content.

A pattern is a path in which `*` and `?` match within one name and `**` matches any depth. Every mistake of a file is
reported at once, with its place.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import yaml

KINDS = {"file": "f", "directory": "d", "link": "l", "fifo": "p", "socket": "s"}
CHECKS = (
    "alternative", "bytecode", "diversions", "dkms", "empty", "grubenv", "kept", "link", "module", "overrides",
    "package", "ramdisk", "skeleton", "unit",
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
    and paths of the base AMI that it removes. kernel_options: names; listeners: programs; mounts: mount points.
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


_LISTS = (
    "includes", "packages", "removed_packages", "removed", "accounts", "groups", "kernel_options", "listeners",
    "mounts",
)  # fmt: skip
_ROW = ("path", "type", "mode", "owner", "source", "content", "target", "check", "when", "removed", "reason", "name")


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
    mistakes: list[str] = []
    if not isinstance(rows, list):
        raise InvalidRules(f"{path}: expected a list of rules")
    rules = [
        _rule(row, f"{path.name}[{number}]", "", path.parent, mistakes, variables) for number, row in enumerate(rows)
    ]
    mistakes += [f"{path.name}: {rule.name or rule.patterns}: no reason" for rule in rules if not rule.reason]
    _require_none(mistakes)
    return rules


def load_footprint(path: Path, role: str, variables: Variables = MappingProxyType({})) -> Footprint:
    """A role's meta/footprint.yml; content named by `source` is read below the role's folder. InvalidRules.

    variables: values of <names> in its patterns.
    """
    document = _read_yaml(path)
    where = f"{role}/meta/footprint.yml"
    if not isinstance(document, dict):
        raise InvalidRules(f"{where}: expected a mapping (`{{}}` for a role that leaves no file of its own)")
    mistakes = [f"{where}: unknown key {key!r}" for key in document if key not in ("files", *_LISTS)]
    files = document.get("files", [])
    if not isinstance(files, list):
        files, mistakes = [], [*mistakes, f"{where}: files: expected a list"]
    folder = path.parent.parent
    rules = [
        _rule(row, f"{where}: files[{number}]", role, folder, mistakes, variables) for number, row in enumerate(files)
    ]
    lists = {key: _names(document.get(key, []), f"{where}: {key}", mistakes) for key in _LISTS}
    _require_none(mistakes)
    return Footprint(role, tuple(rules), **lists)


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


def _read_yaml(path: Path) -> object:
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InvalidRules(f"{path}: not YAML: {' '.join(str(error).split())}") from error


def _rule(row: object, where: str, role: str, folder: Path, mistakes: list[str], variables: Variables) -> Rule:
    if not isinstance(row, Mapping):
        mistakes.append(f"{where}: expected a mapping")
        return Rule("", ())
    mistakes += [f"{where}: unknown key {key!r}" for key in row if key not in _ROW]
    patterns = _names(row.get("path", []), f"{where}.path", mistakes)
    if not patterns:
        mistakes.append(f"{where}: no path")
    checked_links = row.get("type") == "link" and "check" in row
    mistakes += [f"{where}.path: {text}: {why}" for text in patterns if (why := _too_wide(text, checked_links))]
    kinds = _names(row.get("type", "link" if "target" in row else "file"), f"{where}.type", mistakes)
    mistakes += [f"{where}.type: {kind}: expected one of {', '.join(KINDS)}" for kind in kinds if kind not in KINDS]
    for key, allowed in (("check", CHECKS), ("when", WHEN)):
        if key in row and row[key] not in allowed:
            mistakes.append(f"{where}.{key}: {row[key]}: expected one of {', '.join(allowed)}")
    modes = _names(row.get("mode", []), f"{where}.mode", mistakes)
    mistakes += [f'{where}.mode: {mode}: expected "0644"' for mode in modes if not re.fullmatch(r"0[0-7]{3,4}", mode)]
    owners = _names(row.get("owner", []), f"{where}.owner", mistakes)
    return Rule(
        name=str(row.get("name", "")),
        patterns=patterns,
        reason=str(row.get("reason", "")),
        role=role,
        kinds=tuple(KINDS.get(kind, "?") for kind in kinds),
        modes=tuple(int(mode, 8) for mode in modes if re.fullmatch(r"0[0-7]{3,4}", mode)),
        owners=tuple(owner if ":" in owner else f"{owner}:{owner}" for owner in _substituted(owners, variables)),
        sha256=_digests(row, where, folder, mistakes),
        target=str(row.get("target", "")),
        check=str(row.get("check", "")),
        when=str(row.get("when", "always")),
        removed=bool(row.get("removed", False)),
        expression=re.compile("|".join(expression(text, variables) for text in patterns), re.DOTALL),
    )


def _substituted(values: Iterable[str], variables: Variables) -> list[str]:
    """The values with every value of the variables in them."""
    result = list(values)
    for name, known in variables.items():
        result = [text.replace(f"<{name}>", value) for text in result for value in (known or ("",))]
    return list(dict.fromkeys(result))


def _digests(row: Mapping[str, object], where: str, folder: Path, mistakes: list[str]) -> tuple[str, ...]:
    import hashlib

    if "content" in row:
        return (hashlib.sha256(str(row["content"]).encode()).hexdigest(),)
    if "source" not in row:
        return ()
    files = sorted(path for path in folder.glob(str(row["source"])) if path.is_file())
    if not files:
        mistakes.append(f"{where}.source: {row['source']}: no such file below {folder.name}/")
    return tuple(hashlib.sha256(path.read_bytes()).hexdigest() for path in files)


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


def _names(value: object, where: str, mistakes: list[str]) -> tuple[str, ...]:
    values = [value] if isinstance(value, str) else value
    if not isinstance(values, list) or not all(isinstance(entry, str) for entry in values):
        mistakes.append(f"{where}: expected a string or a list of strings")
        return ()
    return tuple(values)


def _require_none(mistakes: list[str]) -> None:
    if mistakes:
        raise InvalidRules("\n".join(mistakes))
