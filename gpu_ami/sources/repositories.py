"""Package repositories of apt and dnf: one as a plan names it; its key and signed index, read once for each client."""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.sources.http import Client, NotThere, SourceError
from gpu_ami.sources.openpgp import Key, Signature, read_key, verify
from gpu_ami.sources.package_index import SUFFIXES, Index, Package, Relation, inflate

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element


@dataclass(frozen=True)
class Repository:
    """kind: deb or rpm. url: ends with a slash. architecture: as packages of the kind name it.

    keyring: a file of the operating system with the key; where this machine has it, it is read instead of `key_url`.
    """

    kind: str
    url: str
    suite: str
    components: tuple[str, ...]
    architecture: str
    key_url: str
    key_fingerprint: str
    signed_index: bool = True
    keyring: str = ""

    @property
    def is_flat(self) -> bool:
        """An apt repository without suites: packages and index lie in one folder."""
        return self.suite.endswith("/")


@dataclass(frozen=True)
class ReadRepository:
    """folder: where its index is; digest: of the signed top of its index (`sha256:` and 64 hex digits).

    signature: None where the index is not signed by plan (`signed_index: false`).
    """

    repository: Repository
    index: Index
    folder: str
    digest: str
    signature: Signature | None


def digest(data: bytes) -> str:
    """`sha256:` and 64 hex digits."""
    return f"sha256:{hashlib.sha256(data).hexdigest()}"


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


def read_apt(client: Client, repository: Repository, key: Key) -> ReadRepository:
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
        file, data = _packages_file(client, folder, prefix, fields, listed, repository=repository)
        text = inflate(data, file.name).decode("utf-8", "replace")
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
        file, data = _packages_file(client, folder, prefix, fields, _listed(fields), repository=repository)
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


def _packages_file(
    client: Client,
    folder: str,
    prefix: str,
    fields: dict[str, str],
    listed: dict[str, _File],
    *,
    repository: Repository,
) -> tuple[_File, bytes]:
    names = [f"{prefix}Packages{suffix}" for suffix in SUFFIXES]
    there = [listed[name] for name in names if name in listed]
    if not there:
        raise NotThere(f"{folder}: its signed index lists no {prefix}Packages for {repository.architecture}")
    for number, file in enumerate(there):
        try:
            return file, client.get(_address(folder, prefix, file, fields), digest=f"sha256:{file.sha256}")
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


# SHA-256 is createrepo's default; NVIDIA's container toolkit has SHA-512 (NVIDIA/nvidia-container-toolkit d34b3046,
# scripts/packages-sign-all.sh).
_CHECKSUMS = ("sha256", "sha512")
_REPO = "{http://linux.duke.edu/metadata/repo}"
_COMMON = "{http://linux.duke.edu/metadata/common}"
_RPM = "{http://linux.duke.edu/metadata/rpm}"
_OPERATORS = {"LT": "<<", "LE": "<=", "EQ": "=", "GE": ">=", "GT": ">>"}


def read_dnf(client: Client, repository: Repository, key: Key) -> ReadRepository:
    """The repository's packages: verifies the signature of repomd.xml, and with its digest the primary file.

    SourceError: a signature or digest that is not as planned; NotThere: no index; Unreachable.
    """
    url = f"{repository.url}repodata/repomd.xml"
    repomd = client.get(url, limit=_LIMIT)
    signature = _verified(client, url, repomd, key) if repository.signed_index else None
    location, listed = _primary(repomd, url)
    address = f"{repository.url}{location}"
    content = inflate(client.get(address, digest=listed), location)
    packages = list(_dnf_packages(content, address, repository.architecture))
    return ReadRepository(repository, Index.of("rpm", packages), repository.url, digest(repomd), signature)


def _verified(client: Client, url: str, repomd: bytes, key: Key) -> Signature:
    try:
        detached = client.get(f"{url}.asc", limit=_LIMIT)
    except NotThere as error:
        raise SourceError(f"{url}: not signed: {error.message}; dnf refuses it (repo_gpgcheck)") from error
    return verify(repomd, key, url, detached)[1]


def _primary(repomd: bytes, url: str) -> tuple[str, str]:
    """Path below the repository and digest of the primary file."""
    root = _parse(repomd, url)
    for data in root.iter(f"{_REPO}data"):
        if data.get("type") == "primary":
            location, checksum = data.find(f"{_REPO}location"), data.find(f"{_REPO}checksum")
            kind = "" if checksum is None else checksum.get("type", "")
            if location is None or checksum is None or kind not in _CHECKSUMS or not checksum.text:
                raise SourceError(f"{url}: expected a location and a SHA-256 or SHA-512 of the primary file")
            return str(location.get("href")), f"{kind}:{checksum.text.strip().lower()}"
    raise NotThere(f"{url}: it names no primary file")


def _parse(data: bytes, url: str) -> Element:
    """The parsed XML. A document type is refused: repositories have none, and its entities can expand without limit."""
    from xml.etree import ElementTree

    if b"<!DOCTYPE" in data:
        raise SourceError(f"{url}: expected an index, got XML with a document type")
    try:
        return ElementTree.fromstring(data)
    except ElementTree.ParseError as error:
        raise SourceError(f"{url}: not XML, or cut off: {error}") from error


def _dnf_packages(content: bytes, url: str, architecture: str) -> Iterator[Package]:
    for package in _parse(content, url).iter(f"{_COMMON}package"):
        machine = package.findtext(f"{_COMMON}arch", "")
        version = package.find(f"{_COMMON}version")
        if machine not in (architecture, "noarch") or version is None:
            continue
        location = package.find(f"{_COMMON}location")
        form = package.find(f"{_COMMON}format")
        needs = () if form is None else tuple((relation,) for relation in _relations(form, "requires"))
        provides = () if form is None else (*_relations(form, "provides"), *_files(form))
        yield Package(
            package.findtext(f"{_COMMON}name", ""), _evr(version), machine, needs, provides,
            "" if location is None else str(location.get("href")),
        )  # fmt: skip


def _evr(element: Element) -> str:
    """`[EPOCH:]VERSION[-RELEASE]`; an epoch of 0 is left out."""
    epoch, version, release = (element.get(name, "") for name in ("epoch", "ver", "rel"))
    return f"{epoch}:" * (epoch not in ("", "0")) + version + f"-{release}" * bool(release)


def _relations(form: Element, name: str) -> Iterator[Relation]:
    """Without boolean dependencies (`(a if b)`) and rpm's own features, which only rpm evaluates."""
    for entry in form.iterfind(f"{_RPM}{name}/{_RPM}entry"):
        text = entry.get("name", "")
        if text and not text.startswith(("(", "rpmlib(")):
            operator = _OPERATORS.get(entry.get("flags", ""), "")
            yield Relation(text, operator, _evr(entry) if operator else "")


def _files(form: Element) -> Iterator[Relation]:
    for file in form.iterfind(f"{_COMMON}file"):
        if file.text:
            yield Relation(file.text)


_READERS = {"deb": read_apt, "rpm": read_dnf}


def read_repository(client: Client, repository: Repository) -> tuple[Key, ReadRepository]:
    """A repository's planned key, and its index verified with it. SourceError."""
    key = repository_key(client, repository)
    return key, read_index(client, repository, key)


def read_index(client: Client, repository: Repository, key: Key) -> ReadRepository:
    """A repository's index, verified with a key. SourceError."""
    return client.once(repository, lambda: _READERS[repository.kind](client, repository, key))


def repository_key(client: Client, repository: Repository) -> Key:
    """The planned key, of an operating system's own archive from this machine's keyring where it is of that system."""
    keyring = Path(repository.keyring)
    if not repository.keyring or not keyring.is_file():
        return key_at(client, repository.key_url, repository.key_fingerprint)
    fingerprint = repository.key_fingerprint
    return client.once(
        ("key", repository.keyring, fingerprint), lambda: read_key(keyring.read_bytes(), fingerprint, str(keyring))
    )


def key_at(client: Client, url: str, fingerprint: str) -> Key:
    """The key at an address; it must have this fingerprint. SourceError."""
    return client.once(("key", url, fingerprint), lambda: read_key(client.get(url, limit=1 << 20), fingerprint, url))
