"""What a plan needs from its sources: packages of repositories, files with a signature, git tags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from gpu_ami.recipes import ARCHITECTURES, ResolvedPlan, section
from gpu_ami.sources.repositories import Repository
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


def _of_repository(document: ResolvedPlan, role: str, content: Mapping[str, Any]) -> Iterator[PlannedPackages]:
    """A component's packages by the repository that has them: its own, or a further suite of the same archive."""
    row, packages = content["repository"], _packages(content)
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
