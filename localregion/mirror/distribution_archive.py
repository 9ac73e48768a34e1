"""The part of an operating system's own archive that a plan needs: its signed indexes as they are, and packages.

Nothing of it is a replica, and nothing is signed by the mirror. A guest verifies the indexes with the keys that its own
system brings (`keyring` of the plan's repository).
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.recipes import ARCHITECTURES

if TYPE_CHECKING:
    from gpu_ami.sources import Index, Package, Repository
    from localregion.mirror.package_requests import Section

# Below the mirror's root: `https://HOST/PATH` of an archive, beside the replicas of the same host.
FOLDER = "archive"
_DOWNLOAD_SECONDS = 600.0


@dataclass(frozen=True)
class Request:
    """Repositories of an archive, the first that of most packages; packages: name → full version."""

    repositories: tuple[Repository, ...]
    packages: Mapping[str, str]


def is_requested(section: Section) -> bool:
    """Whether the section's packages come from the operating system's own archive."""
    return "keyring" in section.content.get("repository", {})


def request(section: Section) -> Request:
    """What the section needs of the archive."""
    from gpu_ami.sources import Repository

    content, row = section.content, section.content["repository"]
    architecture = ARCHITECTURES[section.architecture].deb
    rows = [row, *row.get("further", ())]
    repositories = tuple(
        Repository(
            "deb", each["url"], each["suite"], tuple(each["components"]), architecture,
            each["key_url"], each["key_fingerprint"], keyring=each["keyring"],
        )
        for each in rows
    )  # fmt: skip
    return Request(repositories, {content["package"]: content["package_version"], **content.get("packages", {})})


def identity(section: Section) -> list[str]:
    """What was fetched on a day (UTC) is fetched again on the next: signed indexes have an end, and archives change."""
    code = Path(__file__).read_text(encoding="utf-8")
    return [code, section.text, section.architecture, time.strftime("%Y-%m-%d", time.gmtime())]


def fetch(section: Section, root: Path) -> None:
    """Writes indexes and packages below `root`. SourceError: not there, not signed as planned, or no answer."""
    from gpu_ami.sources import Client, Limits, index_files, read_repository

    client = Client(limits=Limits(total_s=_DOWNLOAD_SECONDS))
    wanted = request(section)
    indexes = []
    for repository in wanted.repositories:
        key, read = read_repository(client, repository)
        indexes.append(read.index)
        folder = root / FOLDER / repository.url.removeprefix("https://")
        for name, data in index_files(client, repository, key).items():
            _write(folder / "dists" / repository.suite / name, data)
            by_hash = Path(name).parent / "by-hash" / "SHA256" / hashlib.sha256(data).hexdigest()
            _write(folder / "dists" / repository.suite / by_hash, data)
    for number, package in needed(indexes, wanted.packages):
        repository = wanted.repositories[number]
        digest = f"sha256:{package.sha256}" if package.sha256 else ""
        data = client.get(f"{repository.url}{package.location}", digest=digest)
        _write(root / FOLDER / repository.url.removeprefix("https://") / package.location, data)


def needed(indexes: Sequence[Index], planned: Mapping[str, str]) -> list[tuple[int, Package]]:
    """The planned packages and what they require, as far as these indexes have it; each with its index's number.

    Of what is not planned the newest. SourceError: a planned package is not there.
    """
    from gpu_ami.sources import SourceError

    chosen: dict[str, tuple[int, Package]] = {}
    waiting: list[tuple[int, Package]] = []
    for name, version in planned.items():
        found = [(number, package) for number, index in enumerate(indexes) if (package := index.find(name, version))]
        if not found:
            raise SourceError(f"the archive has no {name} {version}", details=_versions(indexes, name))
        waiting.append(found[0])
    while waiting:
        number, package = waiting.pop()
        if package.name in chosen:
            continue
        chosen[package.name] = (number, package)
        for group in package.needs:
            candidates = [
                (place, candidate)
                for relation in group
                for place, index in enumerate(indexes)
                for candidate in index.candidates(relation)
                if planned.get(candidate.name, candidate.version) == candidate.version
            ]
            if candidates and not any(candidate.name in (*chosen, *planned) for _, candidate in candidates):
                waiting.append(candidates[0])
    return [chosen[name] for name in sorted(chosen)]


def _versions(indexes: Iterable[Index], name: str) -> list[str]:
    versions = [version for index in indexes for version in index.versions(name)]
    return [f"{name}: {', '.join(versions) or 'no version'}"]


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
