"""The table of the replicas: `replicas/<family>/packages.yml`, rows that say what a package of a name is made of.

Names are patterns and versions come from whoever asks (a plan): a row is what all versions of a package have in common.
`replicas/README.md` documents the keys.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from gpu_ami.errors import UsageError, counted
from gpu_ami.recipes import ARCHITECTURES

REPLICAS = Path(__file__).parents[1] / "replicas"
TABLE = "packages.yml"
# Modification time of every replica's files and build time of the replica module (UTC, 2026-11-21).
SOURCE_DATE_EPOCH = 1795219200

_KINDS = ("deb", "rpm")
_ROW_KEYS = {
    "name", "kind", "summary", "does", "depends", "provides", "conflicts", "brings", "also", "revision", "trees",
    "templates", "files", "links", "directories", "conffiles", "scripts", "libraries", "real",
}  # fmt: skip
_ARCHIVE_KEYS = {
    "name", "summary", "does", "trees", "templates", "files", "defaults", "holds", "distributions", "list", "real",
}  # fmt: skip
_GIT_KEYS = {"name", "summary", "does", "trees", "templates", "files", "real"}
_SYSTEM = "system"  # kind → `name=version` of the system's own archive, which roles install without saying a version
_SORTS = {"packages": "package", "archives": "archive", "git": "git repository"}
_FAMILY_KEYS = {
    "documentation": None,
    _SYSTEM: None,
    "packages": _ROW_KEYS,
    "archives": _ARCHIVE_KEYS,
    "git": _GIT_KEYS,
}
_PLACEHOLDER = re.compile(r"(?<!\$)\{(\w+)\}")
_TEMPLATE = re.compile(r"@([A-Z][A-Z_]*)@")


@dataclass(frozen=True)
class Row:
    """One row. sort: packages, archives or git; entry: its keys as written."""

    family: str
    sort: str
    entry: Mapping[str, Any] = field(hash=False)
    documentation: str

    @property
    def folder(self) -> Path:
        """The family's sources."""
        return REPLICAS / self.family

    def match(self, name: str, kind: str | None = None) -> re.Match[str] | None:
        if kind is not None and self.entry.get("kind", kind) != kind:
            return None
        return re.fullmatch(self.entry["name"], name)


@functools.cache
def load_rows(folder: Path) -> tuple[Row, ...]:
    """Every family's rows. UsageError names all mistakes with their file."""
    rows: list[Row] = []
    mistakes: list[str] = []
    for path in sorted(folder.glob(f"*/{TABLE}")):
        document = _read(path)
        mistakes += [f"{path}: unknown key {key}" for key in document if key not in _FAMILY_KEYS]
        for sort in _SORTS:
            for entry in document.get(sort) or ():
                mistakes += [f"{path}: {entry.get('name')}: {wrong}" for wrong in _mistakes(entry, sort)]
                documentation = entry.get("real") or document.get("documentation", "")
                rows.append(Row(path.parent.name, sort, entry, documentation))
    if mistakes:
        raise UsageError(f"{counted(len(mistakes), 'mistake')} in the table of the replicas", details=mistakes)
    return tuple(rows)


@functools.cache
def _system_packages(path: Path) -> Mapping[str, tuple[str, ...]]:
    found = _read(path).get(_SYSTEM, {}) if path.exists() else {}
    if not set(found) <= set(_KINDS) or not all("=" in item for items in found.values() for item in items):
        raise UsageError(f"{path}: {_SYSTEM}: expected lists of name=version under deb and rpm, found {found!r}")
    return {kind: tuple(items) for kind, items in found.items()}


def system_packages(family: str, kind: str) -> tuple[str, ...]:
    """`name=version` of what the system's own archive has for the family's role."""
    return _system_packages(REPLICAS / family / TABLE).get(kind, ())


def _read(path: Path) -> Mapping[str, Any]:
    import yaml

    # libyaml's loader, where PyYAML was built with it, is ten times as fast.
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        document = yaml.load(path.read_text(encoding="utf-8"), Loader=loader)
    except yaml.YAMLError as error:
        raise UsageError(f"{path}: not YAML", details=str(error).splitlines()) from error
    if not isinstance(document, dict):
        raise UsageError(f"{path}: expected keys and values, found {type(document).__name__}")
    return document


def _mistakes(entry: Mapping[str, Any], sort: str) -> Iterator[str]:
    allowed = _FAMILY_KEYS[sort] or set()
    yield from (f"unknown key {key}" for key in sorted(set(entry) - allowed))
    yield from (f"{key} is missing" for key in ("name", "summary", "does") if key not in entry)
    for key in ("depends", "provides", "conflicts"):
        if not set(entry.get(key, {})) <= set(_KINDS):
            yield f"{key}: expected lists under deb and rpm, found {entry[key]!r}"
    if entry.get("kind", "deb") not in _KINDS:
        yield f"kind: expected deb or rpm, found {entry['kind']!r}"
    try:
        re.compile(str(entry.get("name")))
    except re.error as error:
        yield f"name: not a regular expression: {error}"


def find_row(sort: str, name: str, *, kind: str | None = None, asked_by: str) -> Row:
    """The only row that matches. UsageError names the package, who asks for it, and the table."""
    rows = [row for row in load_rows(REPLICAS) if row.sort == sort]
    found = [row for row in rows if row.match(name, kind)]
    if len(found) == 1:
        return found[0]
    what = f"{kind or ''} {_SORTS[sort]}".strip()
    if found:
        matching = [f"{REPLICAS / row.family / TABLE}: {row.entry['name']}" for row in found]
        raise UsageError(f"{what} {name} ({asked_by}) matches {len(found)} rows of the replicas", details=matching)
    raise UsageError(
        f"the local region has no replica of the {what} {name}, for which {asked_by} asks",
        details=[f"no row under `{sort}` of {REPLICAS}/*/{TABLE} matches that name"],
        hint="plan something else, add a row (replicas/README.md), or build on AWS with --where",
    )


@dataclass(frozen=True)
class Package:
    """A package to be built. kind: deb or rpm; architecture as in a plan: x86_64 or arm64."""

    name: str
    full_version: str
    kind: str
    architecture: str
    row: Row

    @property
    def epoch(self) -> str:
        return self.full_version.rpartition(":")[0]

    @property
    def version(self) -> str:
        """Upstream version: without epoch and revision."""
        return _split(self.full_version)[0]

    @property
    def release(self) -> str:
        """Revision; an rpm always has one."""
        return _split(self.full_version)[1] or ("1" if self.kind == "rpm" else "")

    @property
    def machine(self) -> str:
        """The architecture as the package's own kind calls it."""
        names = ARCHITECTURES[self.architecture]
        return names.rpm if self.kind == "rpm" else names.deb

    @property
    def file_name(self) -> str:
        without_epoch = self.full_version.rpartition(":")[2]
        if self.kind == "deb":
            return f"{self.name}_{without_epoch}_{self.machine}.deb"
        return f"{self.name}-{self.version}-{self.release}.{self.machine}.rpm"

    @property
    def values(self) -> dict[str, str]:
        """Values of {placeholders} and @TEMPLATES@."""
        matched = self.row.match(self.name)
        groups = {key: value or "" for key, value in matched.groupdict().items()} if matched else {}
        return version_values(self.version) | groups | {
            "name": self.name,
            "full_version": self.full_version,
            "release": self.release,
            "kind": self.kind,
            "machine": self.machine,
            "libdir": "usr/lib64" if self.kind == "rpm" else f"usr/lib/{ARCHITECTURES[self.architecture].triplet}",
        }  # fmt: skip

    def fill(self, text: str) -> str:
        return fill(text, self.values)

    def related(self) -> Iterator[Package]:
        """What the row has beside the planned package: other versions of it, and packages that come with it."""
        for version in self._other_versions():
            yield self._sibling(self.name, f"{self.epoch}{':' * bool(self.epoch)}{version}{self._revision_suffix()}")
        for brought in self.row.entry.get("brings", ()):
            name, _, version = self.fill(brought).partition("=")
            yield self._sibling(name, version or self.full_version)

    def _revision_suffix(self) -> str:
        revision = _split(self.full_version)[1]
        return f"-{revision}" if revision else ""

    def _other_versions(self) -> Sequence[str]:
        """A package that carries its branch in its name has only that branch's versions."""
        branch = self.values.get("branch")
        wanted = [str(version) for version in self.row.entry.get("also", ())]
        return [one for one in wanted if one != self.version and (not branch or one.startswith(f"{branch}."))]

    def _sibling(self, name: str, full_version: str) -> Package:
        asked_by = f"{self.row.family}/{TABLE}: {self.row.entry['name']}"
        row = find_row("packages", name, kind=self.kind, asked_by=asked_by)
        return Package(name, full_version, self.kind, self.architecture, row)


def with_related(packages: Sequence[Package]) -> list[Package]:
    """The packages and those that they bring, each once, sorted by name and version."""
    found: dict[tuple[str, str], Package] = {}
    waiting = list(packages)
    while waiting:
        package = waiting.pop()
        if found.setdefault((package.name, package.full_version), package) is package:
            waiting += package.related()
    return [found[key] for key in sorted(found)]


def _split(full_version: str) -> tuple[str, str]:
    """Upstream version and revision ("" if there is none), as Debian's policy reads them."""
    version, dash, revision = full_version.rpartition(":")[2].rpartition("-")
    return (version, revision) if dash else (revision, "")


def version_values(version: str) -> dict[str, str]:
    """Placeholders that every version gives: 12.4.1 → major 12, minor 12.4, dashed 12-4-1."""
    numbers = version.split(".")
    return {
        "version": version,
        "major": numbers[0],
        "minor": ".".join(numbers[:2]),
        "dashed": version.replace(".", "-"),
        "date": time.strftime("%a %b %e %H:%M:%S UTC %Y", time.gmtime(SOURCE_DATE_EPOCH)),
    }


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replaces {version} and other placeholders; unknown names and the shell's ${version} stay."""
    return _PLACEHOLDER.sub(lambda found: values.get(found[1], found[0]), text)


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replaces @VERSION@ and other templates."""
    return _TEMPLATE.sub(lambda found: values.get(found[1].lower(), found[0]), text)
