"""What a plan requests from the mirror: packages of repositories, files by URL, git repositories by tag.

Only sections of roles that the plan runs count: what no role installs is not served.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import TypedDict, cast

from gpu_ami.errors import UsageError
from gpu_ami.recipes import ARCHITECTURES, PlanDocument, section, site_roles_of
from localregion.debian import release_of
from localregion.loopback import ARCHIVES, MIRROR_ADDRESS
from localregion.mirror.table import Package, find_row, system_packages
from validator import plan_document

_KINDS = {"debian": "deb", "redhat": "rpm"}
# The family whose packages every plan finds in its system's archive.
_TOOLS = "system_tools"
# Where each system has its own packages: address, suite and components of an apt repository.
_SYSTEM = "system"
_ARCHIVES = {
    "debian": ("https://deb.debian.org/debian/", "{codename}", ["main"]),
    "ubuntu": ("https://archive.ubuntu.com/ubuntu/", "{codename}", ["main"]),
    "amzn": ("https://cdn.amazonlinux.com/{codename}/core/{machine}/", "./", []),
}
_KEPT = (
    "version", "package", "package_version", "packages", "modules", "repository", "url", "signature_url", "key_url",
    "tag", "contents",
)  # fmt: skip
# Of Debian's archive, what stands for the repositories that the system's AMI names: Ubuntu's has universe.
_DEBIAN_COMPONENTS = {"debian": ["main"], "ubuntu": ["main", "contrib"]}


class DebianArchive(TypedDict):
    """What of Debian's archive is listed beside the replicas."""

    suite: str
    components: list[str]


class Requested(TypedDict, total=False):
    """The keys of a plan's section (_KEPT) that say what is fetched, and from where."""

    version: str
    package: str
    package_version: str
    packages: dict[str, str]
    modules: dict[str, str]
    repository: plan_document.Repository
    url: str
    signature_url: str
    key_url: str
    tag: str
    contents: dict[str, str]
    debian_archive: DebianArchive


@dataclass(frozen=True)
class Section:
    """What the role of a plan's section fetches. kind: deb or rpm; text: canonical JSON, vendors' addresses."""

    component: str
    kind: str
    architecture: str
    text: str

    @property
    def content(self) -> Requested:
        content: Requested = json.loads(self.text)
        return content


@dataclass(frozen=True)
class Repository:
    """A package repository. path: below the mirror (HOST/PATH)."""

    path: str
    suite: str
    components: tuple[str, ...]
    kind: str

    @property
    def flat(self) -> str | None:
        """The folder of a repository without suites; None if it has them."""
        if self.kind == "deb" and not self.suite.endswith("/"):
            return None
        return (PurePosixPath(self.path) / (self.suite if self.suite.endswith("/") else ".")).as_posix()


@dataclass(frozen=True)
class Download:
    """One file by its address, with a signature beside it, where the plan has one ("" if not)."""

    path: str
    signature_path: str = ""


_RELEASE = "{release}"


def of_kernel(plan: PlanDocument, read_release: Callable[[], str]) -> PlanDocument:
    """The plan with the release of its machines' kernel in the names of the vendors' packages that have it.

    read_release: asked only where there is one.
    """
    if "lustre" not in plan:
        return plan
    lustre = section(plan, "lustre", plan_document.Lustre)
    if _RELEASE not in lustre["package"]:
        return plan
    named = lustre["package"].replace(_RELEASE, read_release())
    return cast(PlanDocument, {**plan, "lustre": {**lustre, "package": named}})


def sections(plan: PlanDocument, only: Collection[str] | None = None) -> list[Section]:
    """The sections that fetch something; of the plan's roles, or of those in `only`. The first is the system's own
    archive, with what those roles install from it."""
    family = plan["os"]["family"]
    if family not in _KINDS:
        raise UsageError(f"the local region has no packages for systems of family {family!r}")
    roles = plan["roles"] if only is None else only
    requested = [_system_section(plan, roles)]
    for component in roles:
        planned = section(plan, component)
        if "provided_by" in planned or not {"repository", "url"} & planned.keys():
            continue
        kept = {key: planned[key] for key in _KEPT if key in planned}
        text = json.dumps(_with_vendor_urls(kept), sort_keys=True)
        requested.append(Section(component, _KINDS[family], plan["architecture"], text))
    return requested


def _system_section(plan: PlanDocument, roles: Collection[str]) -> Section:
    system, kind = plan["os"], _KINDS[plan["os"]["family"]]
    if system["id"] not in _ARCHIVES:
        raise UsageError(f"the local region has no packages for {system['id']} {system['version']}")
    url, suite, components = _ARCHIVES[system["id"]]
    names = {"codename": system["codename"], "machine": ARCHITECTURES[plan["architecture"]].rpm}
    folder = url.format(**names)
    repository = {"url": folder, "suite": suite.format(**names), "components": components}
    items = sorted({item for role in (*roles, _TOOLS) for item in system_packages(role, kind)})
    content = {
        "packages": dict(item.split("=", 1) for item in items) | _later_kernel(plan, kind),
        "repository": repository | {"key_url": f"{folder}gpu-ami-mirror.pub"},
    }
    if kind == "deb" and site_roles_of(plan):  # what those install is not known
        release = release_of(f"{system['id']}{system['version']}")
        content["debian_archive"] = {"suite": release.suite, "components": _DEBIAN_COMPONENTS[system["id"]]}
    return Section(_SYSTEM, kind, plan["architecture"], json.dumps(content, sort_keys=True))


def _later_kernel(plan: PlanDocument, kind: str) -> dict[str, str]:
    """The planned kernel's packages in a version that the system publishes after its AMI."""
    kernel = plan.get("kernel")
    if kernel is None:
        return {}
    version = f"{kernel['version']}.999-1{'.amzn2023' if kind == 'rpm' else ''}"
    return dict.fromkeys(sorted({kernel["package"], *kernel.get("hold", ())}), version)


def _with_vendor_urls(value: object) -> object:
    """Without fingerprints of keys that the mirror's own replaces, and with the vendors' addresses instead of those
    below the mirror."""
    if isinstance(value, Mapping):
        kept = {key: item for key, item in value.items() if key != "key_fingerprint" or "keyring" in value}
        return {key: _with_vendor_urls(item) for key, item in kept.items()}
    if isinstance(value, list):
        return [_with_vendor_urls(item) for item in value]
    if not isinstance(value, str):
        return value
    bare = value.replace(f"{ARCHIVES}/", "https://")
    return bare.replace(f"http://{MIRROR_ADDRESS}/", "https://")


def path_of(url: str, asked_by: str) -> str:
    """https://HOST/PATH → HOST/PATH, the path below the mirror. UsageError: the mirror cannot serve this URL."""
    scheme, _, rest = url.partition("://")
    path = PurePosixPath(rest)
    if scheme != "https" or not rest or ".." in path.parts:
        raise UsageError(
            f"{asked_by}: {url!r} is not an address that the mirror can serve", hint="expected https://HOST/PATH"
        )
    return path.as_posix()


def repository(section: Section) -> Repository | None:
    planned = section.content.get("repository")
    if planned is None:
        return None
    asked_by = f"plan key {section.component}.repository"
    return Repository(
        path_of(planned["url"], asked_by),
        planned["suite"],
        tuple(planned.get("components", ())),
        section.kind,
    )


def packages(section: Section) -> Iterator[Package]:
    """The packages that the section names, each in its full version."""
    content = section.content
    version = content.get("package_version") or content.get("version", "")
    names = {content["package"]: version} if "package" in content else {}
    names |= dict.fromkeys((content.get("modules") or {}).values(), version)
    for name, full_version in (names | content.get("packages", {})).items():
        row = find_row("packages", name, kind=section.kind, asked_by=f"plan key {section.component}")
        # A version that ends with * is planned without the build number that the vendor puts behind it; a plan without
        # a version takes the row's own.
        version = full_version.removesuffix("*") or str(row.entry["also"][0])
        yield Package(name, version, section.kind, section.architecture, row)


def download(section: Section) -> Download | None:
    content = section.content
    if "url" not in content or "tag" in content:
        return None
    asked_by = f"plan key {section.component}"
    signature_url = content.get("signature_url")
    return Download(path_of(content["url"], asked_by), path_of(signature_url, asked_by) if signature_url else "")


def key_paths(section: Section) -> Iterator[str]:
    """Paths at which the section expects public keys."""
    content = section.content
    repository_key = content["repository"].get("key_url") if "repository" in content else None
    for url in (content.get("key_url"), repository_key):
        if url is not None:
            yield path_of(url, f"plan key {section.component}")


def git_repository(section: Section) -> tuple[str, str] | None:
    """Path and tag."""
    content = section.content
    if "tag" not in content:
        return None
    return path_of(content["url"], f"plan key {section.component}"), content["tag"]
