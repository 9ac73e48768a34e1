"""Dependencies inside a repository: met, missing, in conflict with the plan, the operating system's."""

from __future__ import annotations

from gpu_ami.sources.repositories import apt
from gpu_ami.sources.repositories.dependencies import judge
from gpu_ami.sources.repositories.index import Index, Package, Relation


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
