"""Packages of a repository: there, near, newer; versions in the order of dpkg and rpm; dependencies inside it."""

from __future__ import annotations

import shutil

import pytest

from gpu_ami import process
from gpu_ami.sources.repositories import apt
from gpu_ami.sources.repositories.index import Index, Package, Relation, compare, judge


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
    provided = tuple(one for group in apt.relations(provides) for one in group)
    return Package(name, version, "amd64", apt.relations(needs), provided)


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
