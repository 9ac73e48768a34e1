"""What indexes of repositories are read from: addresses, compression, versions."""

from __future__ import annotations

import dataclasses
import gzip
import lzma
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami import process
from gpu_ami.sources.http import Client, SourceError
from gpu_ami.sources.repositories.compression import inflate
from gpu_ami.sources.repositories.keys import dearmored
from gpu_ami.sources.repositories.reading import read_repository
from gpu_ami.sources.repositories.repository import Repository, digest
from gpu_ami.sources.repositories.rpm_versions import compare, rpmvercmp, split
from tests.sources.conftest import Signer, Web, apt_repository, compress, put_apt

# A repository as a plan names it.


REPOSITORY = Repository("deb", "https://vendor.example/", "./", (), "amd64", "https://vendor.example/key", "A" * 40)


def test_repository_without_suites_is_flat() -> None:
    assert REPOSITORY.is_flat and replace(REPOSITORY, suite="/").is_flat
    assert not replace(REPOSITORY, suite="jammy").is_flat


def test_digest_names_its_algorithm() -> None:
    assert digest(b"").startswith("sha256:e3b0c442")


# A repository with its planned key: where the key comes from.


def test_key_of_an_archive_is_read_from_the_systems_keyring(
    web: Web, client: Client, vendor: Signer, tmp_path: Path
) -> None:
    """Where this machine is of that system; elsewhere from the address that the archive publishes it at."""
    put_apt(web, vendor)
    keyring = tmp_path / "archive-keyring.pgp"
    keyring.write_bytes(dearmored(vendor.public, "keyring"))
    nowhere = dataclasses.replace(apt_repository(web, vendor), key_url=f"{web.url}/no-key")
    key, _ = read_repository(client, dataclasses.replace(nowhere, keyring=str(keyring)))
    assert key.fingerprint == vendor.fingerprint
    with pytest.raises(SourceError, match="no-key"):
        read_repository(client, dataclasses.replace(nowhere, keyring=str(tmp_path / "missing")))


# Compressed files: each kind, damage, and bombs.


TEXT = b"Package: a\n" * 100_000


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst", ""])
def test_each_kind_is_read(suffix: str) -> None:
    assert inflate(compress(TEXT, suffix), f"Packages{suffix}") == TEXT


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_bomb_is_stopped_at_the_limit(suffix: str) -> None:
    bomb = compress(b"\0" * (8 << 20), suffix)
    assert len(bomb) < 20_000
    with pytest.raises(SourceError, match=r"more than 1 MiB when decompressed, from \d+ bytes"):
        inflate(bomb, f"Packages{suffix}", limit=1 << 20)


@pytest.mark.parametrize("suffix", [".gz", ".xz"])
def test_cut_off_file_is_named(suffix: str) -> None:
    with pytest.raises(SourceError, match="damaged or cut off"):
        inflate(compress(TEXT, suffix)[:-20], f"Packages{suffix}")


@pytest.mark.parametrize("suffix", [".gz", ".xz", ".zst"])
def test_other_content_is_named(suffix: str) -> None:
    with pytest.raises(SourceError, match="damaged or cut off"):
        inflate(b"<html>no index</html>", f"Packages{suffix}")


def test_several_members_are_one_content() -> None:
    assert inflate(gzip.compress(b"a") + gzip.compress(b"b"), "x.gz") == b"ab"
    assert inflate(lzma.compress(b"a") + lzma.compress(b"b"), "x.xz") == b"ab"


# Order of rpm versions, compared with rpm's own.


# rpm's own tests (tests/rpmvercmp.at) and versions as vendors write them.
PAIRS = [
    ("1.0", "1.0"), ("1.0", "2.0"), ("2.0.1", "2.0"), ("2.0.1a", "2.0.1"), ("5.5p1", "5.5p10"), ("10xyz", "10.1xyz"),
    ("xyz10", "xyz10.1"), ("xyz.4", "8"), ("5.5p10", "5.6p1"), ("5.6p1", "6.5p1"), ("6.0.rc1", "6.0"),
    ("10b2", "10a1"), ("1.0aa", "1.0a"), ("10.0001", "10.1"), ("10.0001", "10.0039"), ("4.999.9", "5.0"),
    ("20101121", "20101122"), ("2_0", "2.0"), ("a+", "a_"), ("1.0~rc1", "1.0"), ("1.0~rc1", "1.0~rc2"),
    ("1.0~rc1~git123", "1.0~rc1"), ("1.0^", "1.0"), ("1.0^git1", "1.0^git2"), ("1.0^git1", "1.01"),
    ("1.0^20160101", "1.0.1"), ("1.0~rc1^git1", "1.0~rc1"), ("1.0^git1~pre", "1.0^git1"), ("1.0^", "1.0~"),
    ("550.163.01", "550.54.15"), ("2.33.10.0_3dcef56f0", "2.33.10.0"), ("1b.fc17", "1.fc17"),
]  # fmt: skip


@pytest.mark.skipif(not shutil.which("rpm"), reason="rpm is not installed")
def test_order_is_rpms() -> None:
    calls = "".join(f"print(rpm.vercmp('{one}', '{other}')..' ')" for one, other in PAIRS)
    shown = process.run(["rpm", "--eval", f"%{{lua:{calls}}}"], timeout=30).stdout.split()
    assert [rpmvercmp(one, other) for one, other in PAIRS] == [int(order) for order in shown]
    assert [rpmvercmp(other, one) for one, other in PAIRS] == [-int(order) for order in shown]


@pytest.mark.parametrize(
    ("first", "second", "order"),
    [
        ("1:1.0-1", "2.0-1", 1),
        ("0:2.0-1", "2.0-1", 0),
        ("2.0-1.amzn2023", "2.0", 0),
        ("2.0-1.el9", "2.0-2.el9", -1),
        ("2.1", "2.0-9", 1),
    ],
)
def test_epoch_and_release(first: str, second: str, order: int) -> None:
    assert compare(first, second) == order and compare(second, first) == -order


def test_parts_of_a_version() -> None:
    assert split("1:4.6.1-1.amzn2023") == ("1", "4.6.1", "1.amzn2023")
    assert split("4.6.1") == ("", "4.6.1", "")
