"""Installers made of replicas: a .tar.gz with scripts and, in its folders, packages (as EFA's installer has them).

With a script before it, it extracts itself (as NVIDIA's .run).
"""

from __future__ import annotations

import gzip
import hashlib
import itertools
import shutil
import tarfile
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from gpu_ami.recipes import ARCHITECTURES
from localregion.architectures import DEFAULT
from localregion.mirror import staging
from localregion.mirror.package_requests import Requested
from localregion.mirror.table import (
    REPLICAS,
    SOURCE_DATE_EPOCH,
    Package,
    Row,
    fill,
    find_row,
    load_rows,
    substitute,
    version_values,
)

# Builds packages, or finds them built: the files, in the packages' order.
Builder = Callable[[list[Package]], list[Path]]


@dataclass(frozen=True)
class Archive:
    """An installer archive. values: of its placeholders; kinds: of the packages inside (deb, rpm).

    architectures: of those packages, and of the row's libraries, if it has any: the first by name.
    """

    row: Row
    values: Mapping[str, str]
    architectures: frozenset[str]
    kinds: frozenset[str]

    @property
    def name(self) -> str:
        return self.values["name"]

    def joined(self, other: Archive) -> Archive:
        """With what another request for the same file names, too, as the vendor's holds the same for all who ask.

        Itself, where the requests contradict each other.
        """
        contradiction = any(other.values.get(key, value) != value for key, value in self.values.items())
        if contradiction or other.row != self.row:
            return self
        architectures, kinds = self.architectures | other.architectures, self.kinds | other.kinds
        return replace(self, values={**other.values, **self.values}, architectures=architectures, kinds=kinds)

    def held_packages(self) -> dict[str, list[Package]]:
        """Folder in the archive → its packages.

        `holds`: kind → folder → `name=version`; a folder with {distribution} is there for each of `distributions`.
        What neither the section nor `defaults` gives a version for is not in this archive.
        """
        held: dict[str, list[Package]] = {}
        for kind, architecture in itertools.product(sorted(self.kinds), sorted(self.architectures)):
            for distribution in self.row.entry.get("distributions", {}).get(kind, [""]):
                values = {**self.values, "distribution": distribution, "arch": ARCHITECTURES[architecture].rpm}
                for folder, items in self.row.entry.get("holds", {}).get(kind, {}).items():
                    filled = (fill(item, values) for item in items)
                    packages = [self._held(item, kind, architecture) for item in filled if "{" not in item]
                    held[fill(folder, values)] = packages
        return held

    def _held(self, item: str, kind: str, architecture: str) -> Package:
        name, _, version = item.partition("=")
        row = find_row("packages", name, kind=kind, asked_by=f"the archive {self.name}")
        return Package(name, version or self.values["version"], kind, architecture, row)


def values_of(row: Row, file_name: str, section: Requested) -> dict[str, str]:
    """Placeholders of an archive: the row's defaults, then what the section says it contains, then its version."""
    contents = {key: str(value) for key, value in section.get("contents", {}).items()}
    matched = row.match(file_name)
    groups = {key: value or "" for key, value in matched.groupdict().items()} if matched else {}
    defaults = {key: str(value) for key, value in row.entry.get("defaults", {}).items()}
    version = str(section["version"])
    return defaults | contents | version_values(version) | {"full_version": version, "name": file_name} | groups


def write(archive: Archive, path: Path, build: Builder) -> Path:
    """Packs the archive; the same content gives the same bytes."""
    with tempfile.TemporaryDirectory(prefix="gpu-ami-archive-") as name:
        tree = Path(name) / "tree"
        tree.mkdir()
        staging.stage(archive.row, archive.values, tree, min(archive.architectures))
        held = [
            (tree / into / package.file_name, package)
            for into, packages in archive.held_packages().items()
            for package in packages
        ]
        for (target, _), built in zip(held, build([package for _, package in held]), strict=True):
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(built, target)
        if "list" in archive.row.entry:
            _write_list(tree / archive.row.entry["list"], [target for target, _ in held])
        staging.normalise(tree)
        with (
            _opened(path, archive) as raw,
            gzip.GzipFile("", "wb", fileobj=raw, mtime=SOURCE_DATE_EPOCH) as packed,
            tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as file,
        ):
            for item in sorted(tree.rglob("*")):
                file.add(item, item.relative_to(tree).as_posix(), recursive=False, filter=_owned_by_root)
    return path


def digest(url: str, version: str) -> str | None:
    """SHA-256 of the mirror's installer at that address; None where the vendor's own is there."""
    name = url.rpartition("/")[2]
    row = next((row for row in load_rows(REPLICAS) if row.sort == "archives" and row.match(name)), None)
    if row is None:
        return None
    architectures, kinds = frozenset({DEFAULT}), frozenset({"deb"})
    archive = Archive(row, values_of(row, name, {"version": version}), architectures, kinds)
    if archive.held_packages():
        raise ValueError(f"{name}: its digest is that of its packages, which only the mirror builds")
    with tempfile.TemporaryDirectory(prefix="gpu-ami-archive-") as folder:
        return hashlib.sha256(write(archive, Path(folder) / name, lambda _: []).read_bytes()).hexdigest()


def _opened(path: Path, archive: Archive) -> BinaryIO:
    """The archive's file, with the row's header in it, if it has one: the shell script that the rest follows."""
    file = path.open("wb")
    if "header" in archive.row.entry:
        script = (archive.row.folder / archive.row.entry["header"]).read_text(encoding="utf-8")
        lines = {"lines": str(script.count("\n") + 1)}
        file.write(substitute(script, {**archive.values, **lines}).encode())
    return file


def _write_list(path: Path, files: list[Path]) -> None:
    """The archive's packages, a path a line, relative to the list's folder."""
    lines = sorted(file.relative_to(path.parent).as_posix() for file in files)
    path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def _owned_by_root(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = 0
    member.uname = member.gname = "root"
    return member
