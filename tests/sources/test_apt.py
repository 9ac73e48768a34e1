"""apt repositories: forms of the index, and every damage on the way from the signature to the packages."""

from __future__ import annotations

from typing import Any

import pytest

from gpu_ami.sources import repositories
from gpu_ami.sources.http import Client, NotThere, SourceError, Unreachable
from gpu_ami.sources.openpgp import Key
from gpu_ami.sources.package_index import Relation
from tests.sources.conftest import (
    PACKAGES,
    QUICK,
    Response,
    Signer,
    Web,
    apt_repository,
    compress,
    put_apt,
    release,
    stall,
)


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ""])
@pytest.mark.parametrize("detached", [False, True])
def test_flat_repository(web: Web, client: Client, vendor: Signer, key: Key, suffix: str, detached: bool) -> None:
    put_apt(web, vendor, suffix=suffix, detached=detached)
    found = repositories.read_apt(client, apt_repository(web, vendor), key)
    assert {name: found.index.versions(name) for name in found.index.names} == {
        "tool": ["2.0-1", "1.0-1"],
        "libtool": ["2.0-1", "1.0-1"],
        "common": ["1:3.1~rc1-1"],
    }
    tool = found.index.find("tool", "1.0-1")
    assert tool and tool.needs[0] == (Relation("libtool", "=", "1.0-1"),)
    assert tool.needs[2] == (Relation("tool-data"), Relation("nothing"))
    assert found.index.candidates(Relation("libtool-api", "=", "1")) == found.index.builds("libtool")[1:]
    assert found.digest.startswith("sha256:") and found.folder == f"{web.url}/flat/"
    assert found.signature and found.signature.fingerprint == vendor.fingerprint


def test_order_of_the_fields_does_not_matter(web: Web, client: Client, vendor: Signer, key: Key) -> None:
    put_apt(web, vendor, "Version: 1\nPackage: a\nArchitecture: amd64\n\nPackage: b\nVersion: 1\nArchitecture: all")
    assert repositories.read_apt(client, apt_repository(web, vendor), key).index.names == {"a", "b"}


def test_suite_with_components(web: Web, client: Client, vendor: Signer, key: Key) -> None:
    put_apt(web, vendor, path="/flat/dists/jammy/", prefix="main/binary-amd64/")
    repository = apt_repository(web, vendor, suite="jammy", components=("main",))
    assert repositories.read_apt(client, repository, key).index.find("tool", "1.0-1")


def test_index_is_read_by_its_digest_where_that_is_served(web: Web, client: Client, vendor: Signer, key: Key) -> None:
    put_apt(web, vendor, suffix=".xz", more="Acquire-By-Hash: yes\n")
    packages = web.files.pop("/flat/Packages.xz").body
    import hashlib

    web.put(f"/flat/by-hash/SHA256/{hashlib.sha256(packages).hexdigest()}", packages)
    assert repositories.read_apt(client, apt_repository(web, vendor), key).index.find("tool", "1.0-1")


def test_smallest_form_that_is_served_is_read(web: Web, client: Client, vendor: Signer, key: Key) -> None:
    plain = PACKAGES.encode()
    signed = release({"./Packages": plain, "./Packages.xz": b"not served"})
    web.put("/flat/InRelease", vendor.sign(signed, "--clearsign"))
    web.put("/flat/Packages", plain)
    assert repositories.read_apt(client, apt_repository(web, vendor), key).index.find("tool", "1.0-1")


def damage(web: Web, signers: dict[str, Signer], name: str) -> None:
    """A repository with one fault."""
    vendor, packages = signers["vendor"], compress(PACKAGES.encode(), ".gz")
    put_apt(web, vendor)
    if name == "half":
        web.put("/flat/Packages.gz", packages[: len(packages) // 2])
    elif name == "cut off":
        web.put("/flat/Packages.gz", packages[:100], length=len(packages))
    elif name == "other key":
        put_apt(web, signers["other"])
    elif name == "wrong signature":
        inside = web.files["/flat/InRelease"].body.replace(b"Origin: test", b"Origin: evil")
        web.put("/flat/InRelease", inside)
    elif name == "page":
        web.put("/flat/InRelease", b"<!doctype html><title>Sign in</title>")
    elif name == "text":
        web.put("/flat/InRelease", b"Welcome")
    elif name == "redirects":
        web.put("/flat/InRelease", b"", status=302, headers={"Location": "/flat/InRelease"})
    elif name == "bomb":
        bomb = compress(b"\0" * (1100 << 20), ".zst")
        web.put("/flat/InRelease", vendor.sign(release({"Packages.zst": bomb}), "--clearsign"))
        web.put("/flat/Packages.zst", bomb)
    elif name == "stalled":
        web.files["/flat/InRelease"] = Response(write=stall)
    elif name == "no index":
        web.files.clear()
    elif name == "unsigned":
        web.files.pop("/flat/InRelease")
        web.put("/flat/Release", release({"Packages.gz": packages}))
    elif name == "no packages":
        web.files.pop("/flat/Packages.gz")
    elif name == "not listed":
        web.put("/flat/InRelease", vendor.sign(release({"Sources.gz": b""}), "--clearsign"))
    elif name == "ended":
        put_apt(web, vendor, more="Valid-Until: Mon, 02 Nov 2020 00:00:00 UTC\n")


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("half", SourceError, r"Packages.gz: expected SHA-256 \w+, as its signed index says, got"),
        ("cut off", Unreachable, r"Packages.gz: .*(incomplete|IncompleteRead|Connection broken)"),
        ("other key", SourceError, "InRelease: signed by another key: .*; expected"),
        ("wrong signature", SourceError, "InRelease: wrong signature: the content was changed after it was signed"),
        ("page", SourceError, "InRelease: an HTML page instead of the file"),
        ("text", SourceError, "InRelease: not signed; expected a signature of"),
        ("redirects", Unreachable, "InRelease: more than 3 redirects"),
        pytest.param(
            "bomb",
            SourceError,
            r"Packages.zst: more than 1024 MiB when decompressed, from \d+ bytes",
            marks=pytest.mark.slow,
        ),
        ("stalled", Unreachable, "InRelease: no data for"),
        ("no index", NotThere, "flat/: no InRelease and no Release: .*HTTP 404"),
        ("unsigned", SourceError, "Release: not signed: .*Release.gpg: HTTP 404; apt refuses it"),
        ("no packages", NotThere, "Packages.gz: HTTP 404"),
        ("not listed", NotThere, "its signed index lists no Packages for amd64"),
        ("ended", SourceError, "its index was valid until Mon, 02 Nov 2020"),
    ],
)
def test_each_damage_is_named(
    web: Web, client: Client, signers: dict[str, Signer], key: Key, name: str, kind: Any, message: str
) -> None:
    damage(web, signers, name)
    if name == "stalled":
        client = Client(limits=QUICK)
    with pytest.raises(kind, match=message) as caught:
        repositories.read_apt(client, apt_repository(web, signers["vendor"]), key)
    assert type(caught.value) is kind


@pytest.mark.parametrize(
    ("text", "groups"),
    [
        ("a", [["a"]]),
        ("a (>= 1) | b:any, c (<< 2~)", [["a >= 1", "b"], ["c << 2~"]]),
        ("a(>1)", [["a >= 1"]]),
        ("libnccl2 (= 2.28.9-1+cuda13.0)", [["libnccl2 = 2.28.9-1+cuda13.0"]]),
        ("", []),
    ],
)
def test_relations(text: str, groups: list[list[str]]) -> None:
    assert [[str(one) for one in group] for group in repositories.relations(text)] == groups


def test_index_files_are_what_was_signed(web: Web, client: Client, vendor: Signer, key: Key) -> None:
    put_apt(web, vendor, suffix=".xz", path="/flat/dists/jammy/", prefix="main/binary-amd64/")
    repository = apt_repository(web, vendor, suite="jammy", components=("main",))
    files = repositories.index_files(client, repository, key)
    assert {name: web.files[f"/flat/dists/jammy/{name}"].body for name in files} == files
    assert set(files) == {"InRelease", "main/binary-amd64/Packages.xz"}
