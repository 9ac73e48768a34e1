"""Checks that the dependencies of planned packages can be met in their repository, at the planned versions.

A name that the repository neither has nor provides is left to the operating system's repositories and not checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from gpu_ami.sources.repositories.index import Index, Package, Relation


@dataclass
class Verdict:
    """unmet: sentences, each with the chain of packages; held_back: versions that apt does not choose without a pin."""

    unmet: list[str] = field(default_factory=list)
    held_back: list[str] = field(default_factory=list)


def judge(index: Index, package: Package, planned: Mapping[str, str]) -> Verdict:
    """Checks the dependencies of a package, recursively. planned: name → version of everything that the plan pins."""
    verdict = Verdict()
    verdict.unmet = _unmet(index, package, planned, {}, (str(package),))
    if index.kind == "deb":
        verdict.held_back = _held_back(index, package, planned)
    return verdict


def _unmet(
    index: Index, package: Package, planned: Mapping[str, str], seen: dict[Package, list[str]], chain: tuple[str, ...]
) -> list[str]:
    if package in seen:
        return seen[package]
    seen[package] = []  # a circular dependency is met when both are installed together
    problems = []
    for group in package.needs:
        inside = [relation for relation in group if index.knows(relation.name)]
        if len(inside) < len(group) or not inside:
            continue  # left to the operating system's repositories
        tried = [_tried(index, relation, planned, seen, chain) for relation in inside]
        if all(tried):
            problems.append(tried[0][0])
    seen[package] = problems
    return problems


def _tried(
    index: Index, relation: Relation, planned: Mapping[str, str], seen: dict[Package, list[str]], chain: tuple[str, ...]
) -> list[str]:
    """Empty if a package meets the relation and can itself be installed, else the reasons."""
    candidates = index.candidates(relation)
    allowed = [
        candidate for candidate in candidates if index.matches(candidate.version, planned.get(candidate.name, "*"))
    ]
    path = " → ".join(chain)
    if not candidates:
        there = ", ".join(index.versions(relation.name)[:3]) or "another version is provided"
        return [f"{path} needs {relation}; the repository has {there}"]
    if not allowed:
        return [f"{path} needs {relation}; the plan has {relation.name} {planned.get(relation.name, '')}".rstrip()]
    below: list[str] = []
    for candidate in allowed:
        below = _unmet(index, candidate, planned, seen, (*chain, str(candidate)))
        if not below:
            return []
    return below


def _held_back(index: Index, package: Package, planned: Mapping[str, str]) -> list[str]:
    """Dependencies on an exact version that is not the newest: apt before 3.0 takes the newest and then stops."""
    problems = []
    for group in package.needs:
        for relation in group[:1]:
            newest = next(iter(index.builds(relation.name)), None)
            if not newest or relation.name in planned or index.satisfies(newest.version, relation):
                continue
            if index.candidates(relation):
                problems.append(f"{package} needs {relation}; apt would take {newest.version}: pin {relation.name}")
    return problems
