"""Content of a mirror's tree, resolved from sections of plans, and its layout below the root."""

from __future__ import annotations

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path, PurePosixPath

from gpu_ami.recipes import ARCHITECTURES
from localregion.mirror import (
    archives,
    deb,
    debian_archive,
    distribution_archive,
    git_repositories,
    package_requests,
    rpm,
)
from localregion.mirror.archives import Archive
from localregion.mirror.package_requests import Download, Repository, Section
from localregion.mirror.pool import Pool
from localregion.mirror.signing import Gpg
from localregion.mirror.table import Package, find_row, with_related

AGENT = "amazon-cloudwatch-agent"


@dataclass
class Content:
    """repositories: packages of each, by file name. files: one by its path below the root, a package, an archive or a
    vendor's own file. git: tags of each repository's path. keys: paths of the public key.
    archives: sections that need a part of an operating system's own archive. debian: repositories that list Debian's
    archive, too; suite, architecture and components of each."""

    repositories: dict[Repository, dict[str, Package]] = field(default_factory=dict)
    files: dict[str, tuple[Download, Package | Archive | Path]] = field(default_factory=dict)
    git: dict[str, set[str]] = field(default_factory=dict)
    keys: set[str] = field(default_factory=set)
    archives: list[Section] = field(default_factory=list)
    debian: dict[Repository, set[tuple[str, str, tuple[str, ...]]]] = field(default_factory=dict)

    def add(self, section: Section, agent_package: Path | None = None) -> None:
        """Adds what the section requests, with related packages. UsageError: there is no replica of it."""
        if distribution_archive.is_requested(section):
            self.archives.append(section)
            return
        repository = package_requests.repository(section)
        if repository:
            packages = with_related(list(package_requests.packages(section)))
            self.repositories.setdefault(repository, {}).update({package.file_name: package for package in packages})
            if archive := section.content.get("debian_archive"):
                part = (archive["suite"], ARCHITECTURES[section.architecture].deb, tuple(archive["components"]))
                self.debian.setdefault(repository, set()).add(part)
        download = package_requests.download(section)
        if download:
            self._add_file(download, _file(section, download, agent_package))
        self.keys |= set(package_requests.key_paths(section))
        tagged = package_requests.git_repository(section)
        if tagged:
            find_row("git", git_repositories.name_of(tagged[0]), asked_by=f"plan key {section.component}")
            self.git.setdefault(tagged[0], set()).add(tagged[1])

    def _add_file(self, download: Download, item: Package | Archive | Path) -> None:
        """Adds a file; the last request for an address wins. An archive holds what all its requests name."""
        _, before = self.files.pop(download.path, (download, item))
        if isinstance(item, Archive) and isinstance(before, Archive):
            item = item.joined(before)
        self.files[download.path] = (download, item)

    def origin(self) -> dict[str, str]:
        """Package or file name → replica or vendor."""
        names = {package.name for packages in self.repositories.values() for package in packages.values()}
        names |= {item.name for _, item in self.files.values() if isinstance(item, Package)}
        names |= {item.name for _, item in self.files.values() if isinstance(item, Archive)}
        names |= {git_repositories.name_of(path) for path in self.git}
        vendor = {AGENT for _, item in self.files.values() if isinstance(item, Path)}
        vendor |= {name for section in self.archives for name in distribution_archive.request(section).packages}
        return dict.fromkeys(sorted(names), "replica") | dict.fromkeys(vendor, "vendor")

    def identity(self, pool: Pool) -> list[object]:
        """JSON that differs wherever two contents differ."""
        repositories = [
            [repr(where), _digests(packages, pool), self._debian_identity(where, pool)]
            for where, packages in self.repositories.items()
        ]
        files = [[repr(download), _identity(item, pool)] for download, item in self.files.values()]
        git = [
            [path, sorted(tags), pool.row_digest(find_row("git", git_repositories.name_of(path), asked_by=path))]
            for path, tags in self.git.items()
        ]
        archives = [distribution_archive.identity(section) for section in self.archives]
        return [sorted(repositories), sorted(files), sorted(git), sorted(self.keys), sorted(archives)]

    def debian_parts(self, pool: Pool, repository: Repository) -> list[debian_archive.Archive]:
        """The parts of Debian's archive that a repository lists."""
        parts = sorted(self.debian.get(repository, ()))
        return [debian_archive.Archive(pool.debian, *part) for part in parts]

    def _debian_identity(self, repository: Repository, pool: Pool) -> list[object]:
        return [part.identity() for part in self.debian_parts(pool, repository)]

    def write(self, root: Path, pool: Pool, gpg: Gpg) -> dict[str, str]:
        """Everything below `root`, signed; `<path>#<tag>` → commit of the git repositories.

        What an earlier tree had too is linked, not made anew.
        """
        code = Path(__file__).read_text(encoding="utf-8")
        for repository, packages in self.repositories.items():
            debian = self.debian_parts(pool, repository)
            identity = [code, repr(repository), _digests(packages, pool), self._debian_identity(repository, pool)]
            fill = partial(
                _write_repository, repository=repository, packages=packages, debian=debian, pool=pool, gpg=gpg
            )
            _link(pool.get_folder(identity, fill), root)
        for download, item in self.files.values():
            identity = [code, repr(download), _identity(item, pool)]
            _link(pool.get_folder(identity, partial(_write_file, download, item, pool, gpg)), root)
        for section in self.archives:
            fetch = partial(distribution_archive.fetch, section)
            _link(pool.get_folder(distribution_archive.identity(section), fetch), root)
        for path in sorted(self.keys):
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            gpg.export(root / path)
        commits: dict[str, str] = {}
        for path, tags in self.git.items():
            tag_commits = git_repositories.write_repository(root / path, tags, "the mirror")
            commits |= {f"{path}#{tag}": commit for tag, commit in tag_commits.items()}
        return commits


def resolve(sections: Iterable[Section], agent_package: Path | None = None) -> Content:
    content = Content()
    for section in sections:
        content.add(section, agent_package)
    return content


def _file(section: Section, download: Download, agent_package: Path | None) -> Package | Archive | Path:
    name = PurePosixPath(download.path).name
    stem, _, kind = name.rpartition(".")
    asked_by = f"plan key {section.component}.url"
    if kind in ("deb", "rpm"):
        if stem == AGENT and kind == "deb" and agent_package is not None:
            return agent_package
        row = find_row("packages", stem, kind=kind, asked_by=asked_by)
        version = f"{section.content['version']}-{row.entry.get('revision', '1')}"
        return Package(stem, version, kind, section.architecture, row)
    row = find_row("archives", name, asked_by=asked_by)
    values = archives.values_of(row, name, section.content)
    return Archive(row, values, frozenset({section.architecture}), frozenset({section.kind}))


def _identity(item: Package | Archive | Path, pool: Pool) -> str:
    if isinstance(item, Package):
        return pool.digest(item)
    if isinstance(item, Archive):
        return pool.archive_digest(item)
    signature = item.with_name(item.name + ".sig")
    digests = []
    for path in (item, signature):
        if path.exists():
            with path.open("rb") as file:
                digests.append(hashlib.file_digest(file, "sha256").hexdigest())
    return " ".join(digests)


def _digests(packages: Mapping[str, Package], pool: Pool) -> list[list[str]]:
    return sorted([name, pool.digest(package)] for name, package in packages.items())


def _link(made: Path, root: Path) -> None:
    """Links a folder's files into the tree; of two sections' files of one archive, the newer one's."""
    shutil.copytree(made, root, copy_function=_link_file, dirs_exist_ok=True)


def _link_file(source: str, target: str) -> None:
    Path(target).unlink(missing_ok=True)
    os.link(source, target)


def _write_repository(
    root: Path,
    *,
    repository: Repository,
    packages: Mapping[str, Package],
    debian: Iterable[debian_archive.Archive],
    pool: Pool,
    gpg: Gpg,
) -> None:
    built = dict(zip(packages, pool.get(list(packages.values()), gpg), strict=True))
    flat = repository.flat
    if flat is None:
        base = root / repository.path
        names = {package.name for package in packages.values()}
        further = [text for part in debian for text in part.stanzas(without=names)]
        deb.write_suite(base, repository.suite, repository.components, built, gpg, further=further)
    elif repository.kind == "deb":
        deb.write_flat(root / flat, built, gpg)
    else:
        (root / flat).mkdir(parents=True, exist_ok=True)
        for name, kept in built.items():
            os.link(kept, root / flat / name)
        rpm.write_repository(root / flat, gpg)


def _write_file(download: Download, item: Package | Archive | Path, pool: Pool, gpg: Gpg, root: Path) -> None:
    target = root / download.path
    target.parent.mkdir(parents=True, exist_ok=True)
    if isinstance(item, Path):
        shutil.copyfile(item, target)
        vendor_signature = item.with_name(item.name + ".sig")
        if vendor_signature.exists():
            shutil.copyfile(vendor_signature, target.with_name(f"{target.name}.vendor.sig"))
    elif isinstance(item, Archive):
        os.link(pool.get_archive(item, gpg), target)
    else:
        os.link(pool.get([item], gpg)[0], target)
    if download.signature_path:
        (root / download.signature_path).parent.mkdir(parents=True, exist_ok=True)
        gpg.sign(target, root / download.signature_path)
