"""The part of an operating system's own archive that a plan needs, from a signed archive of a few packages."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from gpu_ami.sources import Index, Package, SourceError
from gpu_ami.sources.package_index import Relation
from localregion.mirror import distribution_archive
from localregion.mirror.content import Content
from localregion.mirror.package_requests import Section
from localregion.mirror.pool import Pool
from tests.sources.conftest import Signer, Web, put_apt, signers, vendor, web  # noqa: F401 (fixtures)

STANZAS = """\
Package: driver-dkms
Version: 2-1
Architecture: amd64
Depends: dkms, firmware (= 2-1) | firmware-2, support--v1
Filename: pool/driver-dkms_2-1_amd64.deb
SHA256: {driver}

Package: firmware
Version: 2-1
Architecture: amd64
Filename: pool/firmware_2-1_amd64.deb
SHA256: {firmware}

Package: support
Version: 9
Architecture: all
Provides: support--v1
Filename: pool/support_9_all.deb
SHA256: {support}

Package: unrelated
Version: 1
Architecture: amd64
Filename: pool/unrelated_1_amd64.deb
SHA256: {support}
"""


def sha(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


@pytest.fixture
def section(web: Web, vendor: Signer, tmp_path: Path) -> Section:  # noqa: F811
    bodies = {"driver": "the driver", "firmware": "its firmware", "support": "support"}
    stanzas = STANZAS.format(**{name: sha(body) for name, body in bodies.items()})
    put_apt(web, vendor, stanzas, suffix=".xz", path="/a/dists/stable/", prefix="non-free/binary-amd64/")
    web.put("/a/pool/driver-dkms_2-1_amd64.deb", b"the driver")
    web.put("/a/pool/firmware_2-1_amd64.deb", b"its firmware")
    web.put("/a/pool/support_9_all.deb", b"support")
    keyring = tmp_path / "keyring.asc"
    keyring.write_bytes(vendor.public)
    repository = {
        "url": f"{web.url}/a/", "suite": "stable", "components": ["non-free"], "keyring": str(keyring),
        "key_url": f"{web.url}/no-key", "key_fingerprint": vendor.fingerprint,
    }  # fmt: skip
    content = {"package": "driver-dkms", "package_version": "2-1", "packages": {}, "repository": repository}
    return Section("nvidia_driver", "deb", "x86_64", json.dumps(content))


def test_tree_has_the_signed_index_and_what_the_plan_requires(section: Section, web: Web, tmp_path: Path) -> None:  # noqa: F811
    root = tmp_path / "tree"
    distribution_archive.fetch(section, root)
    files = {str(path.relative_to(root)): path.read_bytes() for path in root.rglob("*") if path.is_file()}
    below = f"archive/{web.url}/a".replace("//", "/")
    assert files[f"{below}/dists/stable/InRelease"] == web.files["/a/dists/stable/InRelease"].body
    packages = files[f"{below}/dists/stable/non-free/binary-amd64/Packages.xz"]
    by_hash = f"{below}/dists/stable/non-free/binary-amd64/by-hash/SHA256/{hashlib.sha256(packages).hexdigest()}"
    assert files[by_hash] == packages
    assert {name.rpartition("/")[2]: data for name, data in files.items() if name.endswith(".deb")} == {
        "driver-dkms_2-1_amd64.deb": b"the driver",
        "firmware_2-1_amd64.deb": b"its firmware",
        "support_9_all.deb": b"support",
    }


def test_two_sections_of_one_archive_are_in_one_tree(section: Section, web: Web, tmp_path: Path) -> None:  # noqa: F811
    """Both have the archive's index: two plans of one day, as of either kernel module, ended with File exists."""
    other = Section(
        "nvidia_driver", "deb", "x86_64", section.text.replace("driver-dkms", "support").replace("2-1", "9")
    )
    pool = Pool(tmp_path / "pool", cast(Any, SimpleNamespace(fingerprint="A" * 40)))
    root = tmp_path / "tree"
    root.mkdir()
    Content(archives=[section, other]).write(root, pool, cast(Any, None))
    names = {path.name for path in root.rglob("*.deb")}
    assert names == {"driver-dkms_2-1_amd64.deb", "firmware_2-1_amd64.deb", "support_9_all.deb"}
    assert len(list(root.rglob("InRelease"))) == 1


def test_package_with_another_content_is_refused(section: Section, web: Web, tmp_path: Path) -> None:  # noqa: F811
    web.put("/a/pool/firmware_2-1_amd64.deb", b"something else")
    with pytest.raises(SourceError, match=r"firmware_2-1_amd64\.deb: expected SHA-256"):
        distribution_archive.fetch(section, tmp_path / "tree")


def test_planned_version_that_left_the_archive_is_named() -> None:
    index = Index.of("deb", [Package("driver", "3-1", "amd64")])
    with pytest.raises(SourceError, match="the archive has no driver 2-1") as raised:
        distribution_archive.needed([index], {"driver": "2-1"})
    assert raised.value.details == ("driver: 3-1",)


def test_dependencies_are_taken_from_every_suite_and_at_planned_versions() -> None:
    needs = ((Relation("tool"),), (Relation("libc6"),))
    first = Index.of("deb", [Package("driver", "2-1", "amd64", needs), Package("tool", "2", "amd64")])
    second = Index.of("deb", [Package("tool", "1", "amd64"), Package("extra", "1", "amd64")])
    chosen = distribution_archive.needed([first, second], {"driver": "2-1"})
    assert [(number, str(package)) for number, package in chosen] == [(0, "driver 2-1"), (0, "tool 2")]
    chosen = distribution_archive.needed([first, second], {"driver": "2-1", "tool": "1"})
    assert [(number, str(package)) for number, package in chosen] == [(0, "driver 2-1"), (1, "tool 1")]


def test_only_sections_with_a_keyring_come_from_an_archive(section: Section) -> None:
    assert distribution_archive.is_requested(section)
    vendors = {"package": "x", "package_version": "1", "repository": {"url": "https://v.example/", "suite": "./"}}
    assert not distribution_archive.is_requested(Section("cuda", "deb", "x86_64", json.dumps(vendors)))
