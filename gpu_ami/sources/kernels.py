"""The kernel of a plan in the archive of its operating system, as it is today.

The series that the kernel's package brings, which the newest AMIs boot, and the packages of that very release: its
headers and further modules. No metadata of an AMI names its kernel.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from gpu_ami.recipes import ARCHITECTURES, ResolvedPlan, load_facts
from gpu_ami.sources.http import Client, SourceError
from gpu_ami.sources.package_index import Package, compare
from gpu_ami.sources.repositories import ReadRepository, Repository, read_repository

RELEASE = "{release}"


@dataclass(frozen=True)
class PlannedKernel:
    """series: that the plan has, or one of which it follows. of_release: component, package name with {release}, and
    the series for which the package is planned ("": for all)."""

    package: str
    series: tuple[str, ...]
    follows: bool
    repositories: tuple[Repository, ...]
    of_release: tuple[tuple[str, str, str], ...]


@dataclass(frozen=True)
class Answer:
    """What the archive says of one package. state: there, missing or unknown."""

    component: str
    item: str
    planned: str
    state: str
    source: str
    details: tuple[str, ...] = ()
    near: tuple[str, ...] = ()
    signature: str = ""
    key_days: int | None = None


def planned_kernel(document: ResolvedPlan) -> PlannedKernel | None:
    """What a plan needs of its kernel; None where the facts name no archive of its system, or it has no kernel."""
    sections = cast(Mapping[str, Any], document)
    kernel, system = sections.get("kernel", {}), sections.get("os", {})
    rows = load_facts().operating_systems.values()
    row = next((one for one in rows if (one["id"], one["version"]) == (system.get("id"), system.get("version"))), None)
    archive = row.get("archive", {}).get(sections.get("architecture")) if row else None
    if not archive or "package" not in kernel:
        return None
    architecture = ARCHITECTURES[document["architecture"]].deb
    return PlannedKernel(
        kernel["package"],
        tuple(kernel.get("follows") or [kernel["version"]]),
        "follows" in kernel,
        tuple(Repository("deb", components=("main",), architecture=architecture, **one) for one in archive),
        tuple(_of_release(sections)),
    )


def _of_release(sections: Mapping[str, Any]) -> Iterator[tuple[str, str, str]]:
    yield "kernel", sections["kernel"]["headers"], ""
    for component, content in sections.items():
        if isinstance(content, dict):
            named = [("", content.get("system_packages", ())), *content.get("kernel_packages", {}).items()]
            yield from ((component, name, series) for series, names in named for name in names if RELEASE in name)


def ask_kernel(item: PlannedKernel, client: Client) -> list[Answer]:
    """What the archive has today. One that cannot be read leaves everything unknown: the builder reads it by itself."""
    expected = " or ".join(item.series)
    try:
        read = [read_repository(client, repository) for repository in item.repositories]
    except SourceError as error:
        return [Answer("kernel", item.package, expected, "unknown", item.repositories[0].url, (error.message,))]
    repositories, key = [repository for _, repository in read], read[0][0]
    answer = functools.partial(Answer, source=repositories[0].folder, signature=key.fingerprint, key_days=key.days_left)
    newest = _newest(repositories, item.package)
    if newest is None:
        near = tuple(repositories[0].index.nearest(item.package, ""))
        return [answer("kernel", item.package, expected, "missing", near=near)]
    release, brings = _release(newest), _series(newest)
    found = [answer("kernel", item.package, expected, "there", details=tuple(_said(item, release, brings)))]
    is_taken = brings in item.series or item.follows
    for component, pattern, series in item.of_release if release and is_taken else ():
        if series in ("", brings):
            name = pattern.replace(RELEASE, release)
            found.append(answer(component, name, brings, "there" if _newest(repositories, name) else "missing"))
    return found


def series_today(item: PlannedKernel, client: Client) -> tuple[str, str]:
    """The series that the kernel's package brings in the archive, and its release. SourceError: it cannot be read."""
    read = [read_repository(client, repository)[1] for repository in item.repositories]
    newest = _newest(read, item.package)
    if newest is None:
        raise SourceError(f"{read[0].folder}: expected the package {item.package}")
    return _series(newest), _release(newest) or newest.version


def _series(package: Package) -> str:
    return ".".join(re.findall(r"\d+", package.version)[:2])


def _said(item: PlannedKernel, release: str, brings: str) -> Iterator[str]:
    yield f"brings {release or brings} today"
    if brings in item.series:
        return
    if item.follows:
        yield f"series {brings} is newer than the plan knows: whether the planned modules build on it is not known"
    else:
        yield f"the build stops unless the source AMI boots {' or '.join(item.series)}: name an older one in source_ami"


def _newest(repositories: list[ReadRepository], name: str) -> Package | None:
    builds = [package for one in repositories for package in one.index.builds(name)[:1]]
    by_version = functools.cmp_to_key(functools.partial(compare, "deb"))
    return max(builds, key=lambda package: by_version(package.version), default=None)


def _release(package: Package) -> str:
    """`7.0.0-1014-aws`, of the package that the meta-package needs; "" where it names none."""
    needed = [relation.name for group in package.needs for relation in group]
    return next((name.removeprefix("linux-image-") for name in needed if re.match(r"linux-image-\d", name)), "")
