"""Packages of a repository: there, near, newer; versions in the order of dpkg and rpm; dependencies inside it."""

from __future__ import annotations

import dataclasses
import gzip
import lzma
import shutil
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami import process
from gpu_ami.sources import repositories
from gpu_ami.sources.http import Client, SourceError
from gpu_ami.sources.openpgp import dearmored
from gpu_ami.sources.package_index import (
    Index,
    Package,
    Relation,
    compare,
    compare_rpm,
    inflate,
    judge,
    rpmvercmp,
    split,
)
from gpu_ami.sources.repositories import Repository, digest, read_repository
from tests.sources.conftest import Signer, Web, apt_repository, compress, put_apt


def index(kind: str, *packages: tuple[str, str]) -> Index:
    return Index.of(kind, [Package(name, version, "amd64") for name, version in packages])


DEB = index(
    "deb",
    ("tool", "1.9-1"),
    ("tool", "1.10-1"),
    ("tool", "1.10~rc1-1"),
    ("libtool-12", "2:1"),
    ("neuron", "2.1.0_3dc-1"),
)
RPM = index("rpm", ("tool", "1:4.6.1-1"), ("tool", "1:4.5.0-1"), ("plain", "580.178.04-1.amzn2023"))


@pytest.mark.skipif(not shutil.which("dpkg"), reason="dpkg is not installed")
@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("1.10", "1.9"),
        ("1.0~rc1", "1.0"),
        ("1:1", "2"),
        ("2.28.9-1+cuda13.0", "2.28.9-1+cuda12.9"),
        ("1-1ubuntu1", "1-1"),
    ],
)
def test_debian_versions_are_ordered_as_dpkg_does(first: str, second: str) -> None:
    code = process.run(["dpkg", "--compare-versions", first, "gt", second], timeout=10, check=False).returncode
    assert (compare("deb", first, second) > 0) == (code == 0)
    assert compare("deb", first, second) == -compare("deb", second, first) != 0


def test_versions_are_newest_first() -> None:
    assert DEB.versions("tool") == ["1.10-1", "1.10~rc1-1", "1.9-1"]
    assert DEB.versions("nothing") == []


@pytest.mark.parametrize(
    ("kind", "name", "version", "there"),
    [
        ("deb", "tool", "1.9-1", True),
        ("deb", "tool", "1.9", False),
        ("deb", "tool", "*", True),
        ("deb", "neuron", "2.1.0*", True),
        ("deb", "libtool-12", "1", False),
        ("rpm", "tool", "4.6.1-1", True),
        ("rpm", "tool", "1:4.6.1-1", True),
        ("rpm", "tool", "4.6.1", True),
        ("rpm", "tool", "2:4.6.1-1", False),
        ("rpm", "plain", "580.178.04-1", False),
        ("rpm", "plain", "580.178.04*", True),
    ],
)
def test_planned_version_is_found_as_the_package_manager_would(kind: str, name: str, version: str, there: bool) -> None:
    assert bool((DEB if kind == "deb" else RPM).find(name, version)) is there


def test_newer_versions_and_nearest() -> None:
    assert DEB.newer("tool", "1.9-1") == ["1.10-1", "1.10~rc1-1"]
    assert DEB.newer("tool", "1.10-1") == [] and DEB.newer("tool", "*") == []
    assert DEB.nearest("tool", "1.9-5") == ["tool 1.9-1", "tool 1.10~rc1-1", "tool 1.10-1"]
    assert DEB.nearest("libtool-13", "1") == ["libtool-12 2:1"]
    assert DEB.nearest("unlike-anything", "1") == []


@pytest.mark.parametrize(
    ("operator", "version", "met"),
    [("", "", True), ("=", "1.9-1", True), (">=", "1.9-2", False), ("<<", "1.10", True), (">>", "1.9-1", False)],
)
def test_relations(operator: str, version: str, met: bool) -> None:
    assert DEB.satisfies("1.9-1", Relation("tool", operator, version)) is met


def test_provided_name_without_version_meets_only_a_relation_without() -> None:
    provider = Package("real", "3", "amd64", provides=(Relation("virtual"),))
    found = Index.of("deb", [provider])
    assert found.candidates(Relation("virtual")) == [provider]
    assert found.candidates(Relation("virtual", ">=", "1")) == []
    assert found.knows("virtual") and not found.knows("other")


def package(name: str, version: str, needs: str = "", provides: str = "") -> Package:
    provided = tuple(one for group in repositories.relations(provides) for one in group)
    return Package(name, version, "amd64", repositories.relations(needs), provided)


def unmet(*packages: Package, kind: str = "deb", **planned: str) -> list[str]:
    index = Index.of(kind, packages)
    return judge(index, packages[0], {packages[0].name: packages[0].version} | planned).unmet


def test_dependencies_are_met() -> None:
    assert unmet(package("a", "1", "b (>= 2), libc6 (>= 2.36)"), package("b", "2", "c"), package("c", "1")) == []


def test_version_that_the_repository_does_not_have() -> None:
    problems = unmet(package("a", "1", "b (= 2)"), package("b", "1"), package("b", "3"))
    assert problems == ["a 1 needs b = 2; the repository has 3, 1"]


def test_dependency_of_a_dependency() -> None:
    problems = unmet(package("a", "1", "b"), package("b", "1", "c (>= 2)"), package("c", "1"))
    assert problems == ["a 1 → b 1 needs c >= 2; the repository has 1"]


def test_older_build_is_taken_where_the_newest_cannot_be_installed() -> None:
    assert unmet(package("a", "1", "b"), package("b", "2", "c (>= 2)"), package("b", "1"), package("c", "1")) == []


def test_planned_version_of_a_dependency_counts() -> None:
    packages = package("a", "1", "b (>= 2)"), package("b", "2"), package("b", "1")
    assert unmet(*packages) == []
    assert unmet(*packages, b="1") == ["a 1 needs b >= 2; the plan has b 1"]
    assert unmet(*packages, b="2*") == []


def test_alternatives_and_provided_names() -> None:
    assert unmet(package("a", "1", "b (>= 9) | c"), package("b", "1"), package("c", "1")) == []
    assert unmet(package("a", "1", "virtual (= 5)"), package("b", "1", provides="virtual (= 5)")) == []
    assert len(unmet(package("a", "1", "virtual (= 6)"), package("b", "1", provides="virtual (= 5)"))) == 1


def test_alternative_of_the_operating_system_is_not_judged() -> None:
    assert unmet(package("a", "1", "b (>= 9) | systems-own"), package("b", "1")) == []


def test_circle_of_dependencies_ends() -> None:
    assert unmet(package("a", "1", "b"), package("b", "1", "a (= 1)")) == []


def test_rpm_relations_follow_rpms_order() -> None:
    a = Package("a", "1-1", "x86_64", ((Relation("b", "=", "2.0"),),))
    assert unmet(a, Package("b", "2.0-7.amzn2023", "x86_64"), kind="rpm") == []
    assert len(unmet(a, Package("b", "2.0~rc1-1", "x86_64"), kind="rpm")) == 1


def test_what_apt_would_not_choose_is_named() -> None:
    packages = package("a", "1", "b (= 1)"), package("b", "2"), package("b", "1")
    index = Index.of("deb", packages)
    verdict = judge(index, packages[0], {"a": "1"})
    assert verdict.unmet == []
    assert verdict.held_back == ["a 1 needs b = 1; apt would take 2: pin b"]
    assert judge(index, packages[0], {"a": "1", "b": "1"}).held_back == []


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
    assert compare_rpm(first, second) == order and compare_rpm(second, first) == -order


def test_parts_of_a_version() -> None:
    assert split("1:4.6.1-1.amzn2023") == ("1", "4.6.1", "1.amzn2023")
    assert split("4.6.1") == ("", "4.6.1", "")
