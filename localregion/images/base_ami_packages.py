"""Replicas of the packages that a node family's base AMI contains.

`replicas/<family>_ami/provided_<kind>.txt` lists packages of the family itself. The components under `provides` in the
facts (variables/facts/node_families.yml) are planned as for a plain instance, which gives package names and versions.
"""

from __future__ import annotations

import hashlib
import json
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from localregion.architectures import DEFAULT
from localregion.debian import RELEASES
from localregion.images import base_image
from localregion.mirror import (
    Archive,
    Package,
    Pool,
    find_row,
    packages,
    resolve,
    sections,
    signing_key,
    sources_digest,
)

if TYPE_CHECKING:
    from gpu_ami.recipes import PlanDocument

_REPLICAS = Path(__file__).parents[1] / "replicas"
_KINDS = {"al2023": "rpm", "ubuntu2404": "deb", "ubuntu2204": "deb", **dict.fromkeys(RELEASES, "deb")}
# Base AMIs of a family that another publisher makes, with files of their own: Canonical's of EKS.
_PUBLISHERS = {("ubuntu2404", "eks"): "eks_ubuntu"}
# Architecture → an instance type with all that a node family may provide packages for.
_INSTANCE_TYPES = {"x86_64": "p5.48xlarge", "arm64": "p6e-gb200.36xlarge"}


@dataclass(frozen=True)
class Provided:
    """Packages, and installers with packages inside."""

    packages: tuple[Package, ...] = ()
    archives: tuple[Archive, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.packages or self.archives)

    def digest(self) -> str:
        """Digest of their sources, without the signing key."""
        folders = [folder for archive in self.archives for folder in archive.held_packages().values()]
        held = [package for folder in folders for package in folder]
        parts = [[package.file_name, sources_digest(package.row)] for package in (*self.packages, *held)]
        for archive in self.archives:
            parts.append([json.dumps(archive.values, sort_keys=True), sources_digest(archive.row)])
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest() if parts else ""

    def put(self, folder: Path, home: Path) -> None:
        """Builds what is missing and copies the files to `folder`."""
        folder.mkdir()
        key = signing_key(home)
        pool = Pool(home / "base" / "pool", key)
        with key.opened() as gpg:
            files = pool.get(self.packages, gpg)
            files += [pool.get_archive(archive, gpg) for archive in self.archives]
        for file in files:
            shutil.copy(file, folder)


def family_folder(system: str, family: str) -> str:
    """Name of the folder with the replicas, files and script of a node family's base AMI on that system."""
    return f"{_PUBLISHERS.get((system, family), family)}_ami"


def of_family(system: str, family: str, version: str, architecture: str = DEFAULT) -> Provided:
    """What the base AMI of a node family and its version has on that system."""
    kind = _KINDS[system]
    folder = _REPLICAS / family_folder(system, family)
    listed = list(_listed(folder / f"provided_{kind}.txt", kind, architecture))
    provides = _provides(family, version)
    if not provides:
        return Provided(tuple(listed))
    of_components = _of_components(system, {name: {"version": one} for name, one in provides.items()}, architecture)
    return Provided((*listed, *of_components.packages), of_components.archives)


def of_variant(
    system: str, family: str, variant: str, architecture: str = DEFAULT
) -> tuple[Provided, tuple[tuple[str, Provided], ...]]:
    """What a variant of the base AMI has beside the family's own; and what its script lays out: each driver branch's
    packages, and installers.
    """
    from gpu_ami.recipes import load_facts

    row = load_facts().node_families[family]["variants"][variant]
    kind = _KINDS[system]
    listed = list(_listed(_REPLICAS / f"{family}_{variant}_ami" / f"provided_{kind}.txt", kind, architecture))
    provided = _of_components(system, _settings(row), architecture, of_system=False)
    trees = tuple(
        (name, _of_driver(system, str(branch["version"]), architecture))
        for name, branch in row.get("driver_branches", {}).items()
    )
    return Provided((*listed, *provided.packages)), (*trees, ("installers", Provided((), provided.archives)))


def _settings(row: Mapping[str, Any]) -> dict[str, Mapping[str, str]]:
    """Component → its section of a recipe, as the base AMI has it."""
    settings = row.get("settings", {})
    return {name: {"version": version} | settings.get(name, {}) for name, version in row["provides"].items()}


def _of_driver(system: str, version: str, architecture: str) -> Provided:
    """Packages of a driver in both flavours, with its fabric manager: those of its own version."""
    driver = {"nvidia_driver": {"version": version, "flavour": "boot"}}
    asked = sections(_plan(system, driver, architecture), only=["nvidia_driver", "fabric_manager"])
    planned = [package for section in asked for package in packages(section)]
    return Provided(tuple(package for package in _with_brought(planned) if package.version == version))


def _of_components(
    system: str, components: Mapping[str, Mapping[str, str]], architecture: str, *, of_system: bool = True
) -> Provided:
    """Packages and installers of those components. of_system: also what their roles take from the system's archive."""
    asked = sections(_plan(system, components, architecture), only=list(components))
    planned = [
        package for section in asked if of_system or section.component in components for package in packages(section)
    ]
    archives = [item for _, item in resolve(asked).files.values() if isinstance(item, Archive)]
    return Provided(tuple(_with_brought(planned)), tuple(archives))


def _with_brought(planned: Sequence[Package]) -> list[Package]:
    """Those packages and what comes with them; a mirror would also have other versions."""
    collected: dict[str, Package] = {}
    waiting = list(planned)
    while waiting:
        package = waiting.pop()
        if collected.setdefault(package.name, package) is package:
            waiting += [related for related in package.related() if related.name != package.name]
    return [collected[name] for name in sorted(collected)]


def _listed(path: Path, kind: str, architecture: str) -> Iterator[Package]:
    lines = base_image.listed(path) if path.exists() else []
    for name, _, version in (line.partition("=") for line in lines):
        row = find_row("packages", name, kind=kind, asked_by=str(path))
        yield Package(name, version, kind, architecture, row)


def releases(family: str) -> list[str]:
    """The releases of a family's base AMI whose components are in the fact tables; none where it brings no component.

    Those of a site are not among them.
    """
    from gpu_ami.recipes import load_facts

    rows = load_facts().node_families[family].get("versions", {})
    return [str(version) for version, row in rows.items() if row.get("provides")]


def _provides(family: str, version: str) -> Mapping[str, str]:
    from gpu_ami.recipes import load_facts

    row = load_facts().node_families[family].get("versions", {}).get(version, {})
    provides: Mapping[str, str] = row.get("provides", {})
    return provides


def _plan(system: str, components: Mapping[str, Mapping[str, str]], architecture: str) -> PlanDocument:
    """The plan of a plain instance with those components, and with a driver, without which no plan is one."""
    from gpu_ami.cloud import Place
    from gpu_ami.plan import make_plan

    instance_types = [_INSTANCE_TYPES[architecture]]
    recipe = {"os": system, "architecture": architecture, "flag": "base", "instance_types": instance_types}
    with tempfile.TemporaryDirectory(prefix="gpu-ami-base-") as folder:
        path = Path(folder) / "base.yml"  # JSON is YAML
        path.write_text(
            json.dumps(recipe | {"nvidia_driver": {"version": "newest"}} | dict(components)), encoding="utf-8"
        )
        return make_plan(path, Place(name="nowhere", region="us-east-1")).document
