"""Packages of a repository: there, near, newer; versions in the order of dpkg and rpm."""

from __future__ import annotations

import shutil

import pytest

from gpu_ami import process
from gpu_ami.sources.repositories.index import Index, Package, Relation, compare


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
