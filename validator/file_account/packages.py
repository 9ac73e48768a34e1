"""Which packages of an image are explained: the base AMI's, planned ones, those of a role, and what these require."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase

from validator.file_account.grammar import Footprint
from validator.file_account.inventory import Inventory, Package


@dataclass(frozen=True)
class PackageAccount:
    """explained: packages that are new or have another version, with a reason; findings: those without, a line each."""

    explained: frozenset[str]
    findings: tuple[str, ...]


def planned_names(plan: Mapping[str, object]) -> set[str]:
    """Names of all packages in a plan's sections: `package`, `packages` (mapping or list) and names below them.

    The planned keys are among them, as rpm lists imported keys: gpg-pubkey-ID, as a pattern.
    """
    names = {f"gpg-pubkey-*{fingerprint[-8:].lower()}" for fingerprint in plan_variables(plan)["key"]}
    for section in plan.values():
        if isinstance(section, Mapping):
            for key, value in section.items():
                if key in ("package", "headers_package") and isinstance(value, str):
                    names.add(value.replace("{release}", "*"))  # of a kernel
                elif key in ("packages", "hold", "provided_packages"):
                    names |= {str(name) for name in value} if isinstance(value, Mapping | list) else set()
    return names


# NVIDIA's installer leaves these libraries, too; the others are named libnvidia-*.
_GRID_LIBRARIES = (
    "libcuda", "libcudadebugger", "libnvcuvid", "libvdpau_nvidia", "libnvoptix", "libGLX_nvidia", "libEGL_nvidia",
    "libGLESv1_CM_nvidia", "libGLESv2_nvidia", "libglxserver_nvidia", "nvidia-drm_gbm", "libOpenCL",
)  # fmt: skip


def plan_variables(plan: Mapping[str, object]) -> dict[str, list[str]]:
    """Values of {names} in patterns: files of planned repositories, fingerprints of planned keys, roles, login user,
    and of the GRID driver, where it is planned.
    """
    sections = [value for value in plan.values() if isinstance(value, Mapping)]
    repositories = [section["repository"] for section in sections if isinstance(section.get("repository"), Mapping)]
    system, driver = plan.get("os", {}), plan.get("nvidia_driver", {})
    is_grid = isinstance(driver, Mapping) and driver.get("source") == "grid"
    return {
        "source": sorted(
            {repository_slug(str(row.get("url", "")), str(row.get("suite", "./"))) for row in repositories}
        ),
        "key": sorted(
            {str(row["key_fingerprint"]).upper() for row in (*sections, *repositories) if "key_fingerprint" in row}
        ),
        "role": [str(role).replace("_", "-") for role in plan.get("roles", ())],  # type: ignore[attr-defined]
        "login": [str(system.get("ssh_user", ""))] if isinstance(system, Mapping) else [],
        "grid": ["nvidia"] if is_grid else [],
        "gridlib": list(_GRID_LIBRARIES) if is_grid else [],
    }


def repository_slug(url: str, suite: str) -> str:
    """The name of a repository's file, as roles/vendor_packages writes it."""
    bare = re.sub(r"(/\.?)+$", "", re.sub(r"^[a-z]+://", "", f"{url}/{suite}"))
    return re.sub(r"[^A-Za-z0-9.]+", "-", bare)


def account_packages(
    image: Inventory, base: Inventory, planned: Iterable[str], footprints: Iterable[Footprint]
) -> PackageAccount:
    """Compares the packages of image and base."""
    footprints = list(footprints)
    patterns = {*planned, *(name for footprint in footprints for name in footprint.packages)}
    wanted = _closure(image.packages, patterns)
    removable = {name for footprint in footprints for name in footprint.removed_packages}
    explained, findings = set(), []
    for name, package in sorted(image.packages.items()):
        before = base.packages.get(name)
        if before is not None and before.version == package.version:
            continue
        if name in wanted:
            explained.add(name)
        elif before is None:
            findings.append(f"{name} {package.version} (new: neither planned nor required by a planned package)")
        else:
            findings.append(f"{name} {package.version} (base {before.version}: nothing planned requires it)")
    findings += [
        f"{name} {before.version} (removed)"
        for name, before in sorted(base.packages.items())
        if name not in image.packages and not any(fnmatchcase(name, pattern) for pattern in removable)
    ]
    findings += _marks(image, base, patterns)
    return PackageAccount(frozenset(explained), tuple(findings))


def _marks(image: Inventory, base: Inventory, patterns: Iterable[str]) -> list[str]:
    """Marks of apt that differ from the base AMI's: autoremove removes what was not asked for."""
    patterns = list(patterns)
    found = []
    for name, package in sorted(image.packages.items()):
        before = base.packages.get(name)
        if before is None or before.automatic == package.automatic:
            continue
        if package.automatic:
            found.append(f"{name} {package.version} (marked as installed automatically: autoremove may remove it)")
        elif not any(fnmatchcase(name, pattern) for pattern in patterns):
            found.append(f"{name} {package.version} (marked as installed on request: nothing planned names it)")
    gone = (image.marked or frozenset()) - (base.marked or frozenset()) - image.packages.keys() - base.packages.keys()
    return [*found, *(f"{name} (marked as installed automatically, and not installed)" for name in sorted(gone))]


def _closure(packages: Mapping[str, Package], patterns: Iterable[str]) -> set[str]:
    """The packages that fit a pattern, and all that they require, as far as it is installed."""
    provided: dict[str, set[str]] = {}
    for package in packages.values():
        for name in (package.name, *package.provides):
            provided.setdefault(name, set()).add(package.name)
    pending = [name for pattern in patterns for name in packages if fnmatchcase(name, pattern)]
    reached: set[str] = set()
    while pending:
        name = pending.pop()
        if name in reached:
            continue
        reached.add(name)
        for choices in packages[name].depends:
            for choice in choices:
                pending += provided.get(choice, ())
    return reached
