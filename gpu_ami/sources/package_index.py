"""The packages of a repository: finds the planned version, similar packages and newer versions.

Checks that the dependencies of planned packages can be met in their repository, at the planned versions. A name that
the repository neither has nor provides is left to the operating system's repositories and not checked.
"""

from __future__ import annotations

import difflib
import fnmatch
import functools
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from gpu_ami.sources.http import SourceError

# apt's << and >> are rpm's < and >.
_HOLDS: dict[str, Callable[[int], bool]] = {
    "<<": lambda order: order < 0, "<=": lambda order: order <= 0, "=": lambda order: order == 0,
    ">=": lambda order: order >= 0, ">>": lambda order: order > 0,
}  # fmt: skip


@dataclass(frozen=True)
class Relation:
    """A package that another one needs or provides. operator: <<, <=, =, >=, >>; empty: any version."""

    name: str
    operator: str = ""
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.operator} {self.version}" if self.operator else self.name


@dataclass(frozen=True)
class Package:
    """One build of a package. needs: groups of alternatives, each of which must be met."""

    name: str
    version: str
    architecture: str
    needs: tuple[tuple[Relation, ...], ...] = ()
    provides: tuple[Relation, ...] = ()
    location: str = ""
    sha256: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def compare(kind: str, first: str, second: str) -> int:
    """Order of two versions, by the rules of dpkg (kind deb) or rpm."""
    if kind == "rpm":
        return compare_rpm(first, second)
    from debian.debian_support import Version

    left, right = Version(first), Version(second)
    return (left > right) - (left < right)


Load = Callable[[str], list[Package]]


@dataclass
class Index:
    """Packages of one architecture. kind: deb or rpm. load: builds of a name, in any order; called once for a name.

    names: every package; provided: every name that packages provide, with the packages' names.
    """

    kind: str
    names: frozenset[str]
    provided: Mapping[str, frozenset[str]]
    load: Load
    _builds: dict[str, list[Package]] = field(default_factory=dict)

    @classmethod
    def of(cls, kind: str, packages: Iterable[Package]) -> Index:
        """An index of these packages."""
        by_name: dict[str, list[Package]] = {}
        provided: dict[str, set[str]] = {}
        for package in packages:
            by_name.setdefault(package.name, []).append(package)
            for relation in package.provides:
                provided.setdefault(relation.name, set()).add(package.name)
        frozen = {name: frozenset(names) for name, names in provided.items()}
        return cls(kind, frozenset(by_name), frozen, lambda name: by_name[name])

    def builds(self, name: str) -> list[Package]:
        """All builds of a package, newest first; empty where there is none."""
        if name not in self.names:
            return []
        if name not in self._builds:
            by_version = functools.cmp_to_key(functools.partial(compare, self.kind))
            builds = self.load(name)
            if len(builds) > 1:
                builds = sorted(builds, key=lambda package: by_version(package.version), reverse=True)
            self._builds[name] = builds
        return self._builds[name]

    def versions(self, name: str) -> list[str]:
        """Versions of a package, newest first."""
        return list(dict.fromkeys(package.version for package in self.builds(name)))

    def find(self, name: str, version: str) -> Package | None:
        """The newest build of a planned version, which may end in `*`; None if there is none."""
        for package in self.builds(name):
            if self.matches(package.version, version):
                return package
        return None

    def matches(self, version: str, planned: str) -> bool:
        """Whether a version is the planned one, as apt (kind deb) or dnf compares it."""
        if fnmatch.fnmatchcase(version, planned):
            return True
        if self.kind == "deb":
            return False
        # dnf takes `name-version-release` of any epoch, and a version without its release.
        epoch, number, release = split(version)
        accepted = (f"{number}-{release}", number, f"{epoch or 0}:{number}-{release}")
        return any(fnmatch.fnmatchcase(text, planned) for text in accepted)

    def newer(self, name: str, version: str, most: int = 3) -> list[str]:
        """The newest versions above the planned one, newest first."""
        planned = version.rstrip("*")
        return [
            candidate
            for candidate in self.versions(name)
            if not self.matches(candidate, version) and self._above(candidate, planned)
        ][:most]

    def _above(self, version: str, planned: str) -> bool:
        return bool(planned) and compare(self.kind, version, planned) > 0

    def nearest(self, name: str, version: str, most: int = 4) -> list[str]:
        """For a missing package: the versions next to the planned one, or packages with a similar name."""
        versions = self.versions(name)
        if versions:
            below = [candidate for candidate in versions if not self._above(candidate, version.rstrip("*"))]
            above = [candidate for candidate in reversed(versions) if self._above(candidate, version.rstrip("*"))]
            near = [*below[: most // 2], *above[: most - min(len(below), most // 2)]]
            return [f"{name} {candidate}" for candidate in near]
        names = difflib.get_close_matches(name, sorted(self.names), n=most, cutoff=0.75)
        return [f"{candidate} {self.versions(candidate)[0]}" for candidate in names]

    def satisfies(self, provided: str, relation: Relation) -> bool:
        """Whether a version meets a relation. A name provided without one meets only relations without one."""
        if not relation.operator:
            return True
        return bool(provided) and _HOLDS[relation.operator](compare(self.kind, provided, relation.version))

    def candidates(self, relation: Relation) -> list[Package]:
        """Packages of this repository that meet a relation, by name first, newest first."""
        own = [package for package in self.builds(relation.name) if self.satisfies(package.version, relation)]
        others = [
            package
            for name in sorted(self.provided.get(relation.name, frozenset()) - {relation.name})
            for package in self.builds(name)
            if any(
                provided.name == relation.name and self.satisfies(provided.version, relation)
                for provided in package.provides
            )
        ]
        return own + others

    def knows(self, name: str) -> bool:
        """Whether a package of this repository has or provides the name."""
        return name in self.names or name in self.provided


@dataclass
class Verdict:
    """unmet: sentences, each with the chain of packages; held_back: versions that apt does not choose without a pin."""

    unmet: list[str] = field(default_factory=list)
    held_back: list[str] = field(default_factory=list)


def judge(index: Index, package: Package, planned: Mapping[str, str]) -> Verdict:
    """Checks the dependencies of a package, recursively. planned: name → version of everything that the plan pins."""
    verdict = Verdict()
    verdict.unmet = _unmet(index, package, planned, {}, (str(package),))
    if index.kind == "deb":
        verdict.held_back = _held_back(index, package, planned)
    return verdict


def _unmet(
    index: Index, package: Package, planned: Mapping[str, str], seen: dict[Package, list[str]], chain: tuple[str, ...]
) -> list[str]:
    if package in seen:
        return seen[package]
    seen[package] = []  # a circular dependency is met when both are installed together
    problems = []
    for group in package.needs:
        inside = [relation for relation in group if index.knows(relation.name)]
        if len(inside) < len(group) or not inside:
            continue  # left to the operating system's repositories
        tried = [_tried(index, relation, planned, seen, chain) for relation in inside]
        if all(tried):
            problems.append(tried[0][0])
    seen[package] = problems
    return problems


def _tried(
    index: Index, relation: Relation, planned: Mapping[str, str], seen: dict[Package, list[str]], chain: tuple[str, ...]
) -> list[str]:
    """Empty if a package meets the relation and can itself be installed, else the reasons."""
    candidates = index.candidates(relation)
    allowed = [
        candidate for candidate in candidates if index.matches(candidate.version, planned.get(candidate.name, "*"))
    ]
    path = " → ".join(chain)
    if not candidates:
        there = ", ".join(index.versions(relation.name)[:3]) or "another version is provided"
        return [f"{path} needs {relation}; the repository has {there}"]
    if not allowed:
        return [f"{path} needs {relation}; the plan has {relation.name} {planned.get(relation.name, '')}".rstrip()]
    below: list[str] = []
    for candidate in allowed:
        below = _unmet(index, candidate, planned, seen, (*chain, str(candidate)))
        if not below:
            return []
    return below


def _held_back(index: Index, package: Package, planned: Mapping[str, str]) -> list[str]:
    """Dependencies on an exact version that is not the newest: apt before 3.0 takes the newest and then stops."""
    problems = []
    for group in package.needs:
        for relation in group[:1]:
            newest = next(iter(index.builds(relation.name)), None)
            if not newest or relation.name in planned or index.satisfies(newest.version, relation):
                continue
            if index.candidates(relation):
                problems.append(f"{package} needs {relation}; apt would take {newest.version}: pin {relation.name}")
    return problems


_SEGMENT = re.compile(r"\d+|[A-Za-z]+|~|\^")


def compare_rpm(first: str, second: str) -> int:
    """-1, 0 or 1 of two `[EPOCH:]VERSION[-RELEASE]`. Where one has no release, releases are not compared."""
    left, right = split(first), split(second)
    order = _numbers(left[0] or "0", right[0] or "0") or rpmvercmp(left[1], right[1])
    if order or not left[2] or not right[2]:
        return order
    return rpmvercmp(left[2], right[2])


def split(text: str) -> tuple[str, str, str]:
    """Epoch, version and release; empty where they are missing."""
    epoch, colon, rest = text.partition(":")
    if not colon:
        epoch, rest = "", text
    version, _, release = rest.rpartition("-") if "-" in rest else (rest, "", "")
    return epoch, version, release


def _numbers(first: str, second: str) -> int:
    left, right = int(first), int(second)
    return (left > right) - (left < right)


def rpmvercmp(first: str, second: str) -> int:
    """Segments of digits or letters are compared in turn; digits are newer than letters; `~` is older than the end."""
    left_segments, right_segments = _SEGMENT.findall(first), _SEGMENT.findall(second)
    for index in range(max(len(left_segments), len(right_segments))):
        left = left_segments[index] if index < len(left_segments) else ""
        right = right_segments[index] if index < len(right_segments) else ""
        if left == right:
            continue
        if "~" in (left, right):
            return -1 if left == "~" else 1
        if not left or not right:  # the longer is newer; but a `^` only against the end
            return 1 if left else -1
        if "^" in (left, right):
            return -1 if left == "^" else 1
        if left.isdigit() and right.isdigit():
            if order := _numbers(left, right):
                return order
            continue  # 01 and 1
        if left.isdigit() != right.isdigit():
            return 1 if left.isdigit() else -1
        return -1 if left < right else 1
    return 0


SUFFIXES = (".xz", ".zst", ".gz", "")  # the smallest first
MAX_INFLATED = 1 << 30
_CHUNK = 1 << 20


def inflate(data: bytes, name: str, limit: int = MAX_INFLATED) -> bytes:
    """The content of a file. limit: bytes. SourceError: damaged, cut off, or larger than the limit."""
    suffix = next(suffix for suffix in SUFFIXES if name.endswith(suffix))
    content = bytearray()
    try:
        for piece in _READERS[suffix](data):
            content += piece
            if len(content) > limit:
                raise SourceError(f"{name}: more than {limit >> 20} MiB when decompressed, from {len(data)} bytes")
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        raise SourceError(f"{name}: damaged or cut off: {error}") from error
    return bytes(content)


def _plain(data: bytes) -> Iterator[bytes]:
    yield data


def _gzip(data: bytes) -> Iterator[bytes]:
    while data:  # a file may have several members
        reader = zlib.decompressobj(wbits=31)
        while not reader.eof:
            piece = reader.decompress(data, _CHUNK)
            data = reader.unconsumed_tail
            if not piece and not data and not reader.eof:
                raise EOFError("its end is missing")
            yield piece
        data = reader.unused_data.lstrip(b"\0")


def _xz(data: bytes) -> Iterator[bytes]:
    while data:
        reader = lzma.LZMADecompressor()
        while not reader.eof:
            piece = reader.decompress(data, _CHUNK)
            data = b""
            if not piece and reader.needs_input:
                raise EOFError("its end is missing")
            yield piece
        data = reader.unused_data.lstrip(b"\0")


def _zstd(data: bytes) -> Iterator[bytes]:
    import io

    import zstandard

    frames = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    try:
        with frames.stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
            while piece := reader.read(_CHUNK):
                yield piece
    except zstandard.ZstdError as error:
        raise zlib.error(str(error)) from error


_READERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {".gz": _gzip, ".xz": _xz, ".zst": _zstd, "": _plain}
