"""The tables of replicas, `replicas/<family>/packages.yml`: each row says how packages of a name are made.

Names are patterns, and versions come from the plan: a row holds what all versions of a package have in common.
`replicas/README.md` documents the keys.
"""

from __future__ import annotations

import functools
import re
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import NotRequired, TypedDict

from gpu_ami.errors import UsageError, counted
from gpu_ami.files import parse_yaml
from gpu_ami.recipes import ARCHITECTURES
from validator.schema import Choice, Keys, Kind, ListOf, MapOf, Mistake, Text, key_path

REPLICAS = Path(__file__).parents[1] / "replicas"
TABLE = "packages.yml"
# Of `also`: the version that the vendor publishes after the planned one.
LATER = "later"
# Modification time of every replica's files and build time of the replica module (UTC, 2026-11-21).
SOURCE_DATE_EPOCH = 1795219200

# CUDA's name of the system that it is for (docs.nvidia.com, CUDA installation guide, cross-platform installation).
_CUDA_TARGETS = {"x86_64": "x86_64-linux", "arm64": "sbsa-linux"}

_TEXT = Text("text", r"[\s\S]*")
_PATH = Text("usr/bin/tool", r"\S*")
_VERSION = Text('"1.2.3"', r"\S+")
_PATHS = ListOf(_PATH)
_KIND_NAMES = ("deb", "rpm")


def _by_kind(item: Kind) -> Keys:
    return Keys(dict.fromkeys(_KIND_NAMES, item))


def _by_path(item: Kind) -> MapOf:
    return MapOf(r"\S+", "usr/bin/tool", item)


_RELATIONS = _by_kind(ListOf(Text("python3 (>= 3.9)")))
_OBJECT: Mapping[str, Kind] = {"source": _PATH, "soname": _PATH, "exports": _PATH}
_LINKED = Keys(_OBJECT, needed=("source", "soname"))
_LIBRARY = Keys({**_OBJECT, "needs": _LINKED, "since": _VERSION}, needed=("source", "soname"))
_EVERY_ROW: Mapping[str, Kind] = {
    "name": Text("libtool-(data|extra)", r"\S+"),
    "summary": Text("A tool"),
    "does": Text("says its version"),
    "real": Text("https://vendor.example/documentation"),
    "trees": _by_path(_PATH),
    "templates": _PATHS,
    "files": _by_path(_TEXT),
}
_PACKAGE: Mapping[str, Kind] = {
    "kind": Choice(_KIND_NAMES),
    "depends": _RELATIONS,
    "provides": _RELATIONS,
    "conflicts": _RELATIONS,
    "brings": ListOf(Text("tool-data", r"\S+")),
    "also": ListOf(_VERSION),
    "parts": MapOf(r"[\d.]+", '"13.0.2"', MapOf(r"[a-z]+", "nvcc", _VERSION)),
    "revision": _VERSION,
    "links": _by_path(_PATH),
    "directories": _PATHS,
    "conffiles": _PATHS,
    "scripts": _PATH,
    "libraries": _by_path(_LIBRARY),
    "programs": _by_path(_PATH),
    "setuid": _PATHS,
    "debian": MapOf(r"[a-z0-9.+-]+", "libtool1", _by_path(_PATH)),
}
_ARCHIVE: Mapping[str, Kind] = {
    "defaults": MapOf(r"\w+", "libfabric", _VERSION),
    "holds": _by_kind(_by_path(ListOf(Text("tool-data={other}", r"\S+")))),
    "distributions": _by_kind(ListOf(Text("DEBIAN12", r"\S+"))),
    "list": _PATH,
    "libraries": _by_path(_LIBRARY),
    "header": _PATH,
}
_NEEDED = ("name", "summary", "does")
# Sort of row → its keys.
ROWS: Mapping[str, Keys] = {
    "packages": Keys({**_EVERY_ROW, **_PACKAGE}, _NEEDED),
    "archives": Keys({**_EVERY_ROW, **_ARCHIVE}, _NEEDED),
    "git": Keys(_EVERY_ROW, _NEEDED),
}
_SORTS = {"packages": "package", "archives": "archive", "git": "git repository"}
# `system`: what roles install from the system's own archive, without naming a version.
FAMILY = Keys(
    {
        "documentation": Text("https://vendor.example/documentation"),
        "system": _by_kind(ListOf(Text("agent=1.2-3", r"[^=\s]+=\S+"))),
        **{sort: ListOf(keys, unique=False) for sort, keys in ROWS.items()},
    }
)
_PLACEHOLDER = re.compile(r"(?<!\$)\{(\w+)\}")
_TEMPLATE = re.compile(r"@([A-Z][A-Z_]*)@")


class Needed(TypedDict):
    """A shared object: the C file that it is compiled from, its soname, and a linker's script of symbol versions."""

    source: str
    soname: str
    exports: NotRequired[str]


class Library(Needed):
    """A shared object, and the one that it is linked to. since: the first version of the package that has it."""

    needs: NotRequired[Needed]
    since: NotRequired[str]


class Entry(TypedDict):
    """A row as it is written; `replicas/README.md` documents the keys."""

    name: str
    summary: str
    does: str
    kind: NotRequired[str]
    depends: NotRequired[dict[str, list[str]]]
    provides: NotRequired[dict[str, list[str]]]
    conflicts: NotRequired[dict[str, list[str]]]
    brings: NotRequired[list[str]]
    also: NotRequired[list[str]]
    parts: NotRequired[dict[str, dict[str, str]]]
    revision: NotRequired[str]
    trees: NotRequired[dict[str, str]]
    templates: NotRequired[list[str]]
    files: NotRequired[dict[str, str]]
    links: NotRequired[dict[str, str]]
    directories: NotRequired[list[str]]
    conffiles: NotRequired[list[str]]
    scripts: NotRequired[str]
    libraries: NotRequired[dict[str, Library]]
    programs: NotRequired[dict[str, str]]
    setuid: NotRequired[list[str]]
    debian: NotRequired[dict[str, dict[str, str]]]
    real: NotRequired[str]
    defaults: NotRequired[dict[str, str]]
    holds: NotRequired[dict[str, dict[str, list[str]]]]
    distributions: NotRequired[dict[str, list[str]]]


class RowEntry(Entry):
    """list: the file of an archive with the paths of its packages. header: the script before a self-extracting one."""

    list: NotRequired[str]
    header: NotRequired[str]


@dataclass(frozen=True)
class Row:
    """One row. sort: packages, archives or git; entry: its keys as written."""

    family: str
    sort: str
    entry: RowEntry = field(hash=False)
    documentation: str

    @property
    def folder(self) -> Path:
        """The family's sources."""
        return REPLICAS / self.family

    def match(self, name: str, kind: str | None = None) -> re.Match[str] | None:
        if kind is not None and self.entry.get("kind", kind) != kind:
            return None
        return re.fullmatch(self.entry["name"], name)


@dataclass(frozen=True)
class _Table:
    """A family's table. system: kind → `name=version`; mistakes: each with the file, the row and the key."""

    rows: tuple[Row, ...] = ()
    system: Mapping[str, Sequence[str]] = field(default_factory=dict)
    mistakes: tuple[str, ...] = ()


@functools.cache
def load_rows(folder: Path) -> tuple[Row, ...]:
    """Every family's rows. UsageError lists all mistakes of all tables."""
    tables = [_table(path) for path in sorted(folder.glob(f"*/{TABLE}"))]
    _require_valid(tables)
    return tuple(row for table in tables for row in table.rows)


def system_packages(family: str, kind: str) -> tuple[str, ...]:
    """`name=version` of what the family's role installs from the system's own archive."""
    path = REPLICAS / family / TABLE
    table = _table(path) if path.exists() else _Table()
    _require_valid([table])
    return tuple(table.system.get(kind, ()))


def _require_valid(tables: Sequence[_Table]) -> None:
    mistakes = [mistake for table in tables for mistake in table.mistakes]
    if mistakes:
        raise UsageError(f"{counted(len(mistakes), 'mistake')} in the table of the replicas", details=mistakes)


@functools.cache
def _table(path: Path) -> _Table:
    try:
        document = parse_yaml(path.read_text(encoding="utf-8"), str(path))
    except UsageError as error:
        return _Table(mistakes=(": ".join([error.message, *error.details]),))
    if not isinstance(document, dict):
        return _Table(mistakes=tuple(_lines(path, "", FAMILY.check(document, ""))))
    rest = {key: value for key, value in document.items() if key not in _SORTS or not isinstance(value, list)}
    mistakes = list(_lines(path, "", FAMILY.check(rest, "")))
    rows = []
    for sort in _SORTS:
        entries = document.get(sort, [])
        for number, entry in enumerate(entries if isinstance(entries, list) else [], 1):
            name = str(entry["name"]) if isinstance(entry, dict) and "name" in entry else f"{sort} {number}"
            wrong = list(_lines(path, f"{name}: ", _mistakes(entry, sort)))
            mistakes += wrong
            if not wrong:
                documentation = str(entry.get("real") or document.get("documentation", ""))
                rows.append(Row(path.parent.name, sort, entry, documentation))
    return _Table(tuple(rows), document.get("system", {}), tuple(mistakes))


def _lines(path: Path, name: str, mistakes: Iterable[Mistake]) -> Iterator[str]:
    return (f"{path}: {name}{mistake.path}: {mistake.message}" for mistake in mistakes)


def _mistakes(entry: object, sort: str) -> Iterator[Mistake]:
    keys = ROWS[sort]
    yield from keys.check(entry, "")
    yield from keys.missing(entry)
    if not isinstance(entry, dict):
        return
    libraries = entry.get("libraries")
    for library, value in libraries.items() if isinstance(libraries, dict) else ():
        yield from _LIBRARY.missing(value, key_path("libraries", library))
    try:
        re.compile(str(entry.get("name")))
    except re.error as error:
        yield Mistake("name", f"not a regular expression: {error}")


def find_row(sort: str, name: str, *, kind: str | None = None, asked_by: str) -> Row:
    """The only row that matches. UsageError names the package, who asks for it, and the table."""
    matching = [row for row in load_rows(REPLICAS) if row.sort == sort and row.match(name, kind)]
    if len(matching) == 1:
        return matching[0]
    what = f"{kind or ''} {_SORTS[sort]}".strip()
    if matching:
        rows = [f"{REPLICAS / row.family / TABLE}: {row.entry['name']}" for row in matching]
        raise UsageError(f"{what} {name} ({asked_by}) matches {len(rows)} rows of the replicas", details=rows)
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
    is_later: bool = False  # published after the planned one

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
        return version_values(self.version) | self._parts() | groups | {
            "name": self.name,
            "full_version": self.full_version,
            "release": self.release,
            "kind": self.kind,
            "machine": self.machine,
            "libdir": "usr/lib64" if self.kind == "rpm" else f"usr/lib/{ARCHITECTURES[self.architecture].triplet}",
            "cuda_target": _CUDA_TARGETS[self.architecture],
        }  # fmt: skip

    def _parts(self) -> dict[str, str]:
        """Versions of the packages that a meta-package brings; its own where the row does not say them."""
        rows = self.row.entry.get("parts", {})
        return {name: self.version for row in rows.values() for name in row} | rows.get(self.version, {})

    def fill(self, text: str) -> str:
        return fill(text, self.values)

    def related(self) -> Iterator[Package]:
        """What the row has beside the planned package: other versions of it, and packages that come with it."""
        for version in self._other_versions():
            full_version = f"{self.epoch}{':' * bool(self.epoch)}{version}{self._revision_suffix()}"
            yield self._sibling(self.name, full_version, is_later=version == later_version(self.version))
        for brought in self.row.entry.get("brings", ()):
            name, _, version = self.fill(brought).partition("=")
            yield self._sibling(name, version or self.full_version, is_later=self.is_later)

    def _revision_suffix(self) -> str:
        revision = _split(self.full_version)[1]
        return f"-{revision}" if revision else ""

    def _other_versions(self) -> Sequence[str]:
        """A package that carries its branch in its name has only that branch's versions."""
        if self.is_later:
            return []
        branch = self.values.get("branch")
        listed = self.row.entry.get("also", ())
        named = [later_version(self.version) if version == LATER else version for version in listed]
        others = [version for version in named if version != self.version]
        return [version for version in others if not branch or version.startswith(f"{branch}.")]

    def _sibling(self, name: str, full_version: str, *, is_later: bool) -> Package:
        asked_by = f"{self.row.family}/{TABLE}: {self.row.entry['name']}"
        row = find_row("packages", name, kind=self.kind, asked_by=asked_by)
        return Package(name, full_version, self.kind, self.architecture, row, is_later)


def with_related(packages: Sequence[Package]) -> list[Package]:
    """The packages and those that they bring, each once, sorted by name and version."""
    collected: dict[tuple[str, str], Package] = {}
    waiting = list(packages)
    while waiting:
        package = waiting.pop()
        if collected.setdefault((package.name, package.full_version), package) is package:
            waiting += package.related()
    return [collected[key] for key in sorted(collected)]


def _split(full_version: str) -> tuple[str, str]:
    """Upstream version and revision ("" if there is none), as Debian's policy reads them."""
    version, dash, revision = full_version.rpartition(":")[2].rpartition("-")
    return (version, revision) if dash else (revision, "")


def later_version(version: str) -> str:
    """The next release after a version: its last number is one higher, with as many digits."""
    head, number = re.fullmatch(r"(.*?)(\d+)\D*", version, re.DOTALL).groups()  # type: ignore[union-attr]
    return f"{head}{int(number) + 1:0{len(number)}}"


def version_values(version: str) -> dict[str, str]:
    """Placeholders that every version gives: 12.4.1.7 → major 12, minor 12.4, patch 12.4.1, dashed 12-4-1-7."""
    numbers = version.split(".")
    return {
        "version": version,
        "major": numbers[0],
        "minor": ".".join(numbers[:2]),
        "patch": ".".join(numbers[:3]),
        "dashed": version.replace(".", "-"),
        "date": time.strftime("%a %b %e %H:%M:%S UTC %Y", time.gmtime(SOURCE_DATE_EPOCH)),
    }


def fill(text: str, values: Mapping[str, str]) -> str:
    """Replaces {version} and other placeholders; unknown names and the shell's ${version} stay."""
    return _PLACEHOLDER.sub(lambda match: values.get(match[1], match[0]), text)


def substitute(text: str, values: Mapping[str, str]) -> str:
    """Replaces @VERSION@ and other templates."""
    return _TEMPLATE.sub(lambda match: values.get(match[1].lower(), match[0]), text)
