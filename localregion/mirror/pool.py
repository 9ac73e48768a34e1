"""Built replicas by the digest of their sources: a changed replica rebuilds only itself."""

from __future__ import annotations

import functools
import hashlib
import json
import os
import shutil
import tempfile
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from gpu_ami import process
from localregion import architectures
from localregion.mirror import archives, deb, debian_archive, debian_files, git_repositories, rpm, staging, table
from localregion.mirror.archives import Archive
from localregion.mirror.signing import Gpg, SigningKey
from localregion.mirror.table import Package, Row

_KEPT_SECONDS = 7 * 24 * 3600.0
_DEBIAN = "debian"  # packages of Debian, of which replicas have files
BUILDERS = {"deb": deb.build, "rpm": rpm.build}
_CODE = (deb, rpm, staging, debian_files, table, archives, git_repositories, architectures)


class Pool:
    """`folder/<digest>/<file>`. Not safe against a second user of the folder: the mirror holds a lock."""

    def __init__(self, folder: Path, key: SigningKey, workers: int | None = None) -> None:
        self._folder = folder
        self._key = key
        self._workers = workers or len(os.sched_getaffinity(0))
        self._rows: dict[int, str] = {}
        self.debian = folder.parent / debian_archive.FOLDER  # packages and indexes of Debian's archive

    def digest(self, package: Package) -> str:
        """Of all that the package's bytes depend on; of an rpm, also its signature."""
        signed_by = self._key.fingerprint if package.kind == "rpm" else ""
        identity = {"values": package.values, "architecture": package.architecture, "signed by": signed_by}
        return _sha(_code_digest(), self.row_digest(package.row), json.dumps(identity, sort_keys=True))

    def row_digest(self, row: Row) -> str:
        """Of a row and its sources, read once."""
        if id(row) not in self._rows:
            self._rows[id(row)] = staging.sources_digest(row)
        return self._rows[id(row)]

    def archive_digest(self, archive: Archive) -> str:
        held = archive.held_packages()
        inside = {folder: [self.digest(package) for package in packages] for folder, packages in held.items()}
        content = json.dumps([archive.values, sorted(archive.architectures), inside], sort_keys=True)
        return _sha(_code_digest(), self.row_digest(archive.row), content)

    def get(self, packages: Sequence[Package], gpg: Gpg) -> list[Path]:
        """The built packages, in order; those that are not there yet are built, side by side, and signed."""
        places = [self._folder / self.digest(package) / package.file_name for package in packages]
        missing = {place: package for place, package in zip(places, packages, strict=True) if not place.exists()}
        if missing:
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder, prefix="build-") as name:
                self._build(missing, Path(name), gpg)
        for place in places:
            os.utime(place.parent)
        return places

    def _build(self, missing: Mapping[Path, Package], work: Path, gpg: Gpg) -> None:
        folders = {place: work / place.parent.name for place in missing}
        for folder in folders.values():
            folder.mkdir()
        with process.job_pool(self._workers, "package") as submit:
            jobs = [
                submit(BUILDERS[package.kind], package, folders[place], self._folder / _DEBIAN)
                for place, package in missing.items()
            ]
            built = [job.result() for job in jobs]
        rpm.sign([file for file in built if file.suffix == ".rpm"], gpg)
        for place, folder in folders.items():
            shutil.rmtree(place.parent, ignore_errors=True)
            folder.rename(place.parent)

    def get_archive(self, archive: Archive, gpg: Gpg) -> Path:
        """The packed archive."""
        place = self._folder / self.archive_digest(archive) / archive.name
        if not place.exists():
            place.parent.mkdir(parents=True, exist_ok=True)
            fresh = place.with_name(f".{place.name}")
            archives.write(archive, fresh, lambda packages: self.get(packages, gpg))
            fresh.rename(place)
        os.utime(place.parent)
        return place

    def get_folder(self, identity: object, fill: Callable[[Path], None]) -> Path:
        """A folder that `fill` made once for that identity (JSON) and this key."""
        place = self._folder / _sha(_code_digest(), self._key.fingerprint, json.dumps(identity, sort_keys=True))
        if not place.exists():
            self._folder.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=self._folder, prefix="build-") as name:
                fresh = Path(name) / "folder"
                fresh.mkdir()
                fill(fresh)
                fresh.rename(place)
        os.utime(place)
        return place

    def has_folder(self, identity: object) -> bool:
        """Whether `get_folder` has made it before."""
        place = self._folder / _sha(_code_digest(), self._key.fingerprint, json.dumps(identity, sort_keys=True))
        return place.exists()

    def forget_old(self) -> None:
        """Removes what was not used for a week, and what a killed build left."""
        for folder in self._folder.glob("*"):
            if folder.name.startswith("build-") or time.time() - folder.stat().st_mtime > _KEPT_SECONDS:
                shutil.rmtree(folder, ignore_errors=True)


@functools.cache
def _code_digest() -> str:
    # The bytes of an archive are zlib's, and a plan has the digest of one (archives.digest).
    return _sha(
        zlib.ZLIB_RUNTIME_VERSION, *(Path(module.__file__ or "").read_text(encoding="utf-8") for module in _CODE)
    )


def _sha(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()
