"""dnf repositories: repomd.xml with its signature, and the primary file whose digest it names (createrepo_c(8))."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu_ami.sources.http import Client, NotThere, SourceError
from gpu_ami.sources.repositories.compression import inflate
from gpu_ami.sources.repositories.index import Index, Package, Relation
from gpu_ami.sources.repositories.keys import Key, Signature, verify
from gpu_ami.sources.repositories.repository import ReadRepository, Repository, digest

if TYPE_CHECKING:
    from xml.etree.ElementTree import Element

_REPO = "{http://linux.duke.edu/metadata/repo}"
_COMMON = "{http://linux.duke.edu/metadata/common}"
_RPM = "{http://linux.duke.edu/metadata/rpm}"
_OPERATORS = {"LT": "<<", "LE": "<=", "EQ": "=", "GE": ">=", "GT": ">>"}
_LIMIT = 16 << 20


def read(client: Client, repository: Repository, key: Key) -> ReadRepository:
    """The repository's packages: verifies the signature of repomd.xml, and with its digest the primary file.

    SourceError: a signature or digest that is not as planned; NotThere: no index; Unreachable.
    """
    url = f"{repository.url}repodata/repomd.xml"
    repomd = client.get(url, limit=_LIMIT)
    signature = _verified(client, url, repomd, key) if repository.signed_index else None
    location, sha256 = _primary(repomd, url)
    address = f"{repository.url}{location}"
    content = inflate(client.get(address, sha256=sha256), location)
    packages = list(_packages(content, address, repository.architecture))
    return ReadRepository(repository, Index.of("rpm", packages), repository.url, digest(repomd), signature)


def _verified(client: Client, url: str, repomd: bytes, key: Key) -> Signature:
    try:
        detached = client.get(f"{url}.asc", limit=_LIMIT)
    except NotThere as error:
        raise SourceError(f"{url}: not signed: {error.message}; dnf refuses it (repo_gpgcheck)") from error
    return verify(repomd, key, url, detached)[1]


def _primary(repomd: bytes, url: str) -> tuple[str, str]:
    """Path below the repository and SHA-256 of the primary file."""
    root = _parse(repomd, url)
    for data in root.iter(f"{_REPO}data"):
        if data.get("type") == "primary":
            location, checksum = data.find(f"{_REPO}location"), data.find(f"{_REPO}checksum")
            if location is None or checksum is None or checksum.get("type") != "sha256" or not checksum.text:
                raise SourceError(f"{url}: expected a location and a SHA-256 of the primary file")
            return str(location.get("href")), checksum.text.strip().lower()
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


def _packages(content: bytes, url: str, architecture: str) -> Iterator[Package]:
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
