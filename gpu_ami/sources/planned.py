"""What a plan needs from its sources: packages of repositories, files with a signature, git tags; its kernel.

Of the kernel the archive of the operating system is asked, as it is today: the series that the kernel's package brings,
which the newest AMIs boot, and the packages of that very release: its headers and further modules. No metadata of an
AMI names its kernel.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from gpu_ami.recipes import ARCHITECTURES, ResolvedPlan, load_facts, section
from gpu_ami.sources.http import Client, SourceError
from gpu_ami.sources.package_index import Package, compare
from gpu_ami.sources.repositories import ReadRepository, Repository, read_repository
from validator.plan_document import package_system


@dataclass(frozen=True)
class PlannedPackages:
    """Packages of one component in one repository: name → version, which may end in `*`."""

    component: str
    repository: Repository
    packages: Mapping[str, str]


@dataclass(frozen=True)
class PlannedFile:
    """An installer or a package by its address, and the file with its signature."""

    component: str
    version: str
    url: str
    signature_url: str
    key_url: str
    key_fingerprint: str


@dataclass(frozen=True)
class PlannedDownload:
    """A file whose vendor publishes neither a signature nor a digest. sha256: the recipe's own digest, or ""."""

    component: str
    version: str
    url: str
    sha256: str


@dataclass(frozen=True)
class PlannedTag:
    """A git repository's tag, and the commit that is built."""

    component: str
    version: str
    url: str
    tag: str
    commit: str


@dataclass(frozen=True)
class Unasked:
    """What is not asked for, and why."""

    component: str
    item: str
    reason: str


Planned = PlannedPackages | PlannedFile | PlannedDownload | PlannedTag | Unasked
_SYSTEM = "the operating system's own archive"
_OF_THE_KERNEL = "its name has the release of the kernel that the builder boots"


def planned(document: ResolvedPlan) -> list[Planned]:
    """Everything that the roles of a plan download, in their order; then what the base AMI contains."""
    sections = cast(Mapping[str, object], document)
    brought = [name for name, value in sections.items() if isinstance(value, dict) and "provided_by" in value]
    roles = [*document["roles"], *(name for name in brought if name not in document["roles"])]
    return [item for role in roles for item in _of_role(document, role)]


def _of_role(document: ResolvedPlan, role: str) -> Iterator[Planned]:
    content: Mapping[str, Any] = section(document, role)
    version = str(content.get("version", ""))
    if "provided_by" in content:
        yield Unasked(role, version, f"part of the base AMI ({content['provided_by']})")
        return
    if "repository" in content:
        yield from _of_repository(document, role, content)
    elif "tag" in content:
        yield PlannedTag(role, version, content["url"], content["tag"], content["commit"])
    elif "signature_url" in content:
        keys = ("url", "signature_url", "key_url", "key_fingerprint")
        yield PlannedFile(role, version, *(str(content[key]) for key in keys))
    elif "url" in content:
        yield PlannedDownload(role, version, str(content["url"]), str(content.get("sha256", "")))
    elif "package" in content:
        yield Unasked(role, str(content["package"]), _SYSTEM)
    of_kernels = [name for names in content.get("kernel_packages", {}).values() for name in names]
    systems = [content.get("runtime_package", ""), *content.get("system_packages", ()), *of_kernels]
    yield from (Unasked(role, name, _SYSTEM) for name in systems if name)


def _of_repository(document: ResolvedPlan, role: str, content: Mapping[str, Any]) -> Iterator[Planned]:
    """A component's packages by the repository that has them: its own, or a further suite of the same archive."""
    row, packages = content["repository"], _packages(content)
    of_kernel = [name for name in packages if RELEASE in name]
    yield from (Unasked(role, name, _OF_THE_KERNEL) for name in of_kernel)
    packages = {name: version for name, version in packages.items() if name not in of_kernel}
    further = [(each, {name: packages.pop(name) for name in each["packages"]}) for each in row.get("further", ())]
    yield PlannedPackages(role, _repository(document, row), packages)
    yield from (PlannedPackages(role, _repository(document, each), names) for each, names in further if names)


def _packages(content: Mapping[str, Any]) -> dict[str, str]:
    version = str(content.get("package_version") or content.get("version") or "*")
    names = [*([content["package"]] if "package" in content else []), *(content.get("modules") or {}).values()]
    packages: dict[str, str] = content.get("packages", {})
    return dict.fromkeys(names, version) | packages


def _repository(document: ResolvedPlan, row: Mapping[str, Any]) -> Repository:
    kind = package_system(document["os"])
    names = ARCHITECTURES[document["architecture"]]
    return Repository(
        kind,
        f"{row['url'].rstrip('/')}/",
        row.get("suite", "./"),
        tuple(row.get("components", ())),
        names.rpm if kind == "rpm" else names.deb,
        row["key_url"],
        row["key_fingerprint"].upper(),
        row.get("signed_index", True),
        row.get("keyring", ""),
    )


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
