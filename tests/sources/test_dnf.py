"""dnf repositories: forms of the index, and every damage on the way from the signature to the packages."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.sources import repositories
from gpu_ami.sources.http import Client, NotThere, SourceError
from gpu_ami.sources.openpgp import Key
from tests.sources.conftest import PRIMARY, Signer, Web, dnf_repository, put_dnf


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ""])
def test_repository(web: Web, client: Client, vendor: Signer, key: Key, suffix: str) -> None:
    put_dnf(web, vendor, suffix=suffix)
    found = repositories.read_dnf(client, dnf_repository(web, vendor), key)
    assert {name: found.index.versions(name) for name in found.index.names} == {
        "tool": ["1.0-1.amzn2023"],
        "libtool": ["1.0-3.amzn2023"],
        "epoch": ["1:4.6.1-1"],
    }
    tool = found.index.find("tool", "1.0-1.amzn2023")
    assert tool and [str(one) for group in tool.needs for one in group] == [
        "libtool = 1.0", "libc.so.6()(64bit)", "/usr/bin/helper",
    ]  # fmt: skip
    assert found.index.knows("/usr/bin/helper")
    assert found.signature and found.signature.fingerprint == vendor.fingerprint


def test_index_with_sha512(web: Web, client: Client, vendor: Signer, key: Key) -> None:
    """As NVIDIA makes the repository of its container toolkit: createrepo -s sha512 --compress-type xz."""
    put_dnf(web, vendor, suffix=".xz", algorithm="sha512")
    assert repositories.read_dnf(client, dnf_repository(web, vendor), key).index.knows("tool")
    body = web.files["/rpm/repodata/primary.xml.xz"].body
    web.put("/rpm/repodata/primary.xml.xz", body[:-1] + b"x")
    with pytest.raises(SourceError, match=r"expected SHA-512 [0-9a-f]{128}, as its signed index says, got [0-9a-f]"):
        repositories.read_dnf(Client(), dnf_repository(web, vendor), key)


@pytest.mark.parametrize("algorithm", ["md5", "sha1"])
def test_index_with_a_digest_that_proves_nothing(
    web: Web, client: Client, vendor: Signer, key: Key, algorithm: str
) -> None:
    put_dnf(web, vendor, algorithm=algorithm)
    with pytest.raises(SourceError, match="expected a location and a SHA-256 or SHA-512 of the primary file"):
        repositories.read_dnf(client, dnf_repository(web, vendor), key)


def test_index_that_is_not_signed_by_plan(web: Web, client: Client, vendor: Signer, key: Key) -> None:
    put_dnf(web, None)
    found = repositories.read_dnf(client, dnf_repository(web, vendor, signed_index=False), key)
    assert found.signature is None and found.index.knows("tool")


def damage(web: Web, signers: dict[str, Signer], name: str) -> None:
    put_dnf(web, signers["vendor"])
    repomd = web.files["/rpm/repodata/repomd.xml"].body
    if name == "half":
        web.put("/rpm/repodata/primary.xml.gz", web.files["/rpm/repodata/primary.xml.gz"].body[:50])
    elif name == "other key":
        put_dnf(web, signers["other"])
    elif name == "wrong signature":
        web.put("/rpm/repodata/repomd.xml", repomd + b"\n")
    elif name == "unsigned":
        web.files.pop("/rpm/repodata/repomd.xml.asc")
    elif name == "page":
        web.put("/rpm/repodata/repomd.xml", b"<html>log in</html>")
    elif name == "no index":
        web.files.clear()
    elif name == "no primary":
        text = b'<repomd xmlns="http://linux.duke.edu/metadata/repo"/>'
        web.put("/rpm/repodata/repomd.xml", text)
        web.put("/rpm/repodata/repomd.xml.asc", signers["vendor"].sign(text, "--detach-sign"))
    elif name == "cut off":
        put_dnf(web, signers["vendor"], PRIMARY[:600])
    elif name == "entities":
        put_dnf(web, signers["vendor"], PRIMARY.replace("<metadata", '<!DOCTYPE x [<!ENTITY a "b">]><metadata'))


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("half", SourceError, "primary.xml.gz: expected SHA-256"),
        ("other key", SourceError, "repomd.xml: signed by another key"),
        ("wrong signature", SourceError, "repomd.xml: wrong signature"),
        ("unsigned", SourceError, "repomd.xml: not signed: .*HTTP 404; dnf refuses it"),
        ("page", SourceError, "repomd.xml: an HTML page"),
        ("no index", NotThere, "repomd.xml: HTTP 404"),
        ("no primary", NotThere, "it names no primary file"),
        ("cut off", SourceError, "primary.xml.gz: not XML, or cut off"),
        ("entities", SourceError, "got XML with a document type"),
    ],
)
def test_each_damage_is_named(
    web: Web, client: Client, signers: dict[str, Signer], key: Key, name: str, kind: Any, message: str
) -> None:
    damage(web, signers, name)
    with pytest.raises(kind, match=message) as caught:
        repositories.read_dnf(client, dnf_repository(web, signers["vendor"]), key)
    assert type(caught.value) is kind
