"""apt repositories: InRelease (or Release and Release.gpg), and the Packages file whose digest it signs.

Flat (`deb URL ./`) and with suites and components (sources.list(5), "Debian repository format").
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime

from gpu_ami.sources.http import Client, NotThere, SourceError
from gpu_ami.sources.repositories.compression import SUFFIXES, inflate
from gpu_ami.sources.repositories.index import Index, Package, Relation
from gpu_ami.sources.repositories.keys import Key, Signature, verify
from gpu_ami.sources.repositories.repository import ReadRepository, Repository, digest

_FIELD = re.compile(r"^([\w-]+): *(.*(?:\n[ \t].*)*)", re.MULTILINE)
_NAME = re.compile(r"^Package: *(\S+)", re.MULTILINE)
_RELATION = re.compile(r"([a-z0-9][a-z0-9+.-]*)(?::[a-z0-9]+)?(?: *\( *(<<|<=|=|>=|>>|<|>) *([^ )]+) *\))?")
_OLD_OPERATORS = {"<": "<=", ">": ">="}  # Debian Policy 7.1
_LIMIT = 16 << 20


@dataclass(frozen=True)
class _File:
    """A file that a Release lists: its name there, and its digest."""

    name: str
    sha256: str


def read(client: Client, repository: Repository, key: Key) -> ReadRepository:
    """The repository's packages: verifies the signature of Release, and with its digests the index.

    SourceError: a signature or digest that is not as planned; NotThere: no index; Unreachable.
    """
    folder = repository.url if repository.is_flat else f"{repository.url}dists/{repository.suite}/"
    folder = f"{folder}{repository.suite.removeprefix('./').lstrip('/')}" if repository.is_flat else folder
    signed, release, signature = _release(client, folder, key)
    fields = _fields(release.decode("utf-8", "replace"))
    _require_current(fields, folder)
    listed = _listed(fields)
    stanzas: dict[str, list[str]] = {}
    for component in [""] if repository.is_flat else repository.components:
        prefix = f"{component}/binary-{repository.architecture}/" if component else ""
        text = _packages(client, folder, prefix, fields, listed, repository)
        for name, stanza in _stanzas(text, repository.architecture):
            stanzas.setdefault(name, []).append(stanza)
    return ReadRepository(repository, _index(stanzas), folder, digest(signed), signature)


def index_files(client: Client, repository: Repository, key: Key) -> dict[str, bytes]:
    """InRelease and each component's Packages as they are, by their names below dists/SUITE; verified as by `read`."""
    folder = f"{repository.url}dists/{repository.suite}/"
    signed = client.get(f"{folder}InRelease", limit=_LIMIT)
    fields = _fields(verify(signed, key, f"{folder}InRelease")[0].decode("utf-8", "replace"))
    files = {"InRelease": signed}
    for component in repository.components:
        prefix = f"{component}/binary-{repository.architecture}/"
        file, data = _packages_file(client, folder, prefix, fields, _listed(fields), repository)
        files[file.name] = data
    return files


def _release(client: Client, folder: str, key: Key) -> tuple[bytes, bytes, Signature]:
    """The signed file, its content, and the signature."""
    try:
        signed = client.get(f"{folder}InRelease", limit=_LIMIT)
    except NotThere:
        return _detached(client, folder, key)
    content, signature = verify(signed, key, f"{folder}InRelease")
    return signed, content, signature


def _detached(client: Client, folder: str, key: Key) -> tuple[bytes, bytes, Signature]:
    try:
        release = client.get(f"{folder}Release", limit=_LIMIT)
    except NotThere as error:
        raise NotThere(f"{folder}: no InRelease and no Release: {error.message}", code=error.code) from error
    try:
        detached = client.get(f"{folder}Release.gpg", limit=_LIMIT)
    except NotThere as error:
        raise SourceError(f"{folder}Release: not signed: {error.message}; apt refuses it") from error
    content, signature = verify(release, key, f"{folder}Release", detached)
    return release, content, signature


def _fields(text: str) -> dict[str, str]:
    return dict(_FIELD.findall(text))


def _require_current(fields: dict[str, str], folder: str) -> None:
    until = fields.get("Valid-Until", "")
    try:
        ended = bool(until) and parsedate_to_datetime(until).timestamp() < time.time()
    except ValueError as error:
        raise SourceError(f"{folder}: Valid-Until: expected a date, got {until!r}") from error
    if ended:
        raise SourceError(f"{folder}: its index was valid until {until}; apt refuses it")


def _listed(fields: dict[str, str]) -> dict[str, _File]:
    rows = [line.split() for line in fields.get("SHA256", "").splitlines() if line.strip()]
    return {row[2].removeprefix("./"): _File(row[2], row[0].lower()) for row in rows if len(row) == 3}


def _packages(
    client: Client, folder: str, prefix: str, fields: dict[str, str], listed: dict[str, _File], repository: Repository
) -> str:
    file, data = _packages_file(client, folder, prefix, fields, listed, repository)
    return inflate(data, file.name).decode("utf-8", "replace")


def _packages_file(
    client: Client, folder: str, prefix: str, fields: dict[str, str], listed: dict[str, _File], repository: Repository
) -> tuple[_File, bytes]:
    names = [f"{prefix}Packages{suffix}" for suffix in SUFFIXES]
    there = [listed[name] for name in names if name in listed]
    if not there:
        raise NotThere(f"{folder}: its signed index lists no {prefix}Packages for {repository.architecture}")
    for number, file in enumerate(there):
        try:
            return file, client.get(_address(folder, prefix, file, fields), sha256=file.sha256)
        except NotThere:
            if number == len(there) - 1:
                raise
    raise AssertionError("the last file is returned or raises")


def _address(folder: str, prefix: str, file: _File, fields: dict[str, str]) -> str:
    """Its path by digest where the repository has one, so that an update of the repository meanwhile does no harm."""
    if fields.get("Acquire-By-Hash") == "yes":
        return f"{folder}{prefix}by-hash/SHA256/{file.sha256}"
    return f"{folder}{file.name.removeprefix('./')}"


def _stanzas(text: str, architecture: str) -> Iterator[tuple[str, str]]:
    """Name and text of every package of an architecture. Not parsed: an archive has 60,000, a plan needs few."""
    architecture_lines = (f"\nArchitecture: {architecture}\n", "\nArchitecture: all\n")
    for paragraph in text.split("\n\n"):
        stanza = f"{paragraph}\n"
        name = _NAME.search(stanza)
        if name and (architecture_lines[0] in stanza or architecture_lines[1] in stanza):
            yield name[1], stanza


def _index(stanzas: dict[str, list[str]]) -> Index:
    provided: dict[str, set[str]] = {}
    for name, builds in stanzas.items():
        for stanza in builds:
            if "\nProvides:" in stanza:
                groups = relations(_fields(stanza)["Provides"])
                for relation in (each for group in groups for each in group):
                    provided.setdefault(relation.name, set()).add(name)
    frozen = {name: frozenset(names) for name, names in provided.items()}
    return Index("deb", frozenset(stanzas), frozen, lambda name: [_package(stanza) for stanza in stanzas[name]])


def _package(stanza: str) -> Package:
    values = _fields(stanza)
    needs = ", ".join(values[name] for name in ("Pre-Depends", "Depends") if values.get(name))
    provides = tuple(relation for group in relations(values.get("Provides", "")) for relation in group)
    identity = (values["Package"], values.get("Version", ""), values["Architecture"])
    return Package(*identity, relations(needs), provides, values.get("Filename", ""), values.get("SHA256", ""))


def relations(text: str) -> tuple[tuple[Relation, ...], ...]:
    """`a (>= 1) | b, c` → groups of alternatives (Debian Policy 7.1)."""
    groups = []
    for group in text.split(","):
        matches = [_RELATION.match(alternative.strip()) for alternative in group.split("|") if alternative.strip()]
        alternatives = tuple(
            Relation(match[1], _OLD_OPERATORS.get(match[2], match[2]) or "", match[3] or "")
            for match in matches
            if match
        )
        if alternatives:
            groups.append(alternatives)
    return tuple(groups)
