"""bom.cdx.json: the bill of materials of an image, CycloneDX 1.6, from what the proof read of its files or machines.

Packages (purl, repository), kernel modules (version, signer, vermagic, digest) and the roles' own files (digest, role).
The image is an operating system whose pedigree names the base AMI. The serial number follows from the content.
"""

from __future__ import annotations

import hashlib
import json
import uuid
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, Property, XsUri
from cyclonedx.model.bom import Bom, BomMetaData
from cyclonedx.model.component import Component, ComponentType, Pedigree
from cyclonedx.model.lifecycle import LifecyclePhase, PredefinedLifecycle
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from gpu_ami import __version__
from gpu_ami.errors import UsageError
from gpu_ami.files import read_json, write_text
from gpu_ami.release.statement import BOM_FILE
from validator import file_account
from validator.evidence import MATERIALS_FILE
from validator.file_account import InvalidInventory, Inventory

if TYPE_CHECKING:
    from gpu_ami.report import HostReport, Report

MATERIALS_SCHEMA = "gpu-ami/materials/1"
_PREFIX = "gpu-ami:"
_NAMESPACES = {"rhel": "redhat"}  # ID of os-release → namespace in purl-spec, where it differs


@dataclass(frozen=True)
class Sources:
    """What a bill is made of. host: from whose evidence materials and inventory are; build: content of build.json."""

    host: HostReport
    materials: Mapping[str, Any]
    inventory: Inventory | None
    build: Mapping[str, Any]


def write(report: Report, folder: Path, roles_folders: Sequence[Path]) -> Sources | None:
    """Writes bom.cdx.json into the folder of a proof; returns what it was made of.

    None: the proof has no materials, and a bill of an earlier one is removed.
    """
    sources = find(report, folder)
    if sources is None:
        (folder / BOM_FILE).unlink(missing_ok=True)
        return None
    write_text(folder / BOM_FILE, text(report, sources, roles_folders))
    return sources


def find(report: Report, folder: Path) -> Sources | None:
    """What the evidence says an image is made of: of its files, else of the first machine that said it.

    UsageError: a host answered with other types than onhost/materials.py writes, or the inventory is damaged.
    """
    for host in sorted(report.hosts, key=lambda host: not host.offline):
        evidence = folder / "evidence" / host.evidence
        materials = read_json(evidence / MATERIALS_FILE)
        if materials is not None and materials.get("schema") == MATERIALS_SCHEMA and materials.get("packages"):
            if mistake := _mistake(materials):
                raise _damaged(evidence / MATERIALS_FILE, mistake)
            path = evidence / file_account.KEPT_FILE
            try:
                inventory = file_account.read(path.read_bytes()) if path.is_file() else None
            except (InvalidInventory, LookupError, TypeError) as error:
                raise _damaged(path, str(error)) from error
            build = read_json(folder / "build.json") or {}
            return Sources(host, materials, inventory, build if build.get("ami") == report.image else {})
    return None


_PACKAGE = ("name", "version", "architecture", "kind", "source", "vendor", "repository")
_MODULE = ("path", "name", "version", "signer", "vermagic", "license")
_MOST = 100_000  # rows of each kind; a distribution's archive has some 60,000 packages


def _mistake(materials: Mapping[str, Any]) -> str:
    """What is wrong in materials.json, which a host under test wrote; "" if nothing is."""
    for name in ("os", "os_version"):
        if not isinstance(materials.get(name), str):
            return f"{name}: expected a text"
    for name, members in (("packages", _PACKAGE), ("modules", _MODULE)):
        rows = materials.get(name)
        if not isinstance(rows, list) or len(rows) > _MOST:
            return f"{name}: expected a list of at most {_MOST:,} rows"
        for index, row in enumerate(rows):
            if not isinstance(row, dict):
                return f"{name}[{index}]: expected an object"
            wrong = next((member for member in members if not isinstance(row.get(member), str)), "")
            if wrong:
                return f"{name}[{index}].{wrong}: expected a text"
            if name == "packages" and not (row["name"] and row["kind"]):
                return f"{name}[{index}]: expected a name and a kind"
    return ""


def _damaged(path: Path, mistake: str) -> UsageError:
    hint = "the host that was proven wrote it: `gpu-ami validate` asks it again"
    return UsageError(f"{path}: {mistake}", hint=hint)


def text(report: Report, sources: Sources, roles_folders: Sequence[Path]) -> str:
    """The document. The same report and evidence give the same text."""
    repositories = planned_repositories(report.plan)
    components = [
        *_packages(sources.materials, repositories),
        *_modules(sources),
        *_files(report, sources, roles_folders),
    ]
    unique = {component.bom_ref.value: component for component in components}
    root = _image(report, sources)
    metadata = BomMetaData(
        component=root,
        lifecycles=[PredefinedLifecycle(LifecyclePhase.POST_BUILD)],
        timestamp=_time(report.finished),
        properties=_properties(tool=f"gpu-ami {__version__}", read=sources.host.name),
    )
    bom = Bom(components=unique.values(), metadata=metadata, serial_number=_serial_number([root, *unique.values()]))
    with warnings.catch_warnings():
        # A graph of what requires what is not drawn: that the image has everything is said by the list.
        warnings.filterwarnings("ignore", message=".*has no defined dependencies.*")
        return str(JsonV1Dot6(bom).output_as_string(indent=1)) + "\n"


def _serial_number(components: Iterable[Component]) -> uuid.UUID:
    """The same for the same components in any order; the library's own is random."""
    rows = sorted(
        [component.bom_ref.value, component.name, component.version]
        + [f"{entry.name}={entry.value}" for entry in component.properties]
        + [entry.content for entry in component.hashes]
        for component in components
    )
    digest = hashlib.sha256(json.dumps(rows).encode()).hexdigest()
    return uuid.uuid5(uuid.NAMESPACE_URL, f"gpu-ami:{digest}")


def _time(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return datetime.fromtimestamp(0, UTC)


def _properties(**values: str) -> list[Property]:
    return [Property(name=f"{_PREFIX}{name}", value=value) for name, value in values.items() if value]


def _image(report: Report, sources: Sources) -> Component:
    """The image itself, and the AMI that it was built on."""
    system = report.plan.get("os")
    name = str(system.get("name", "")) if isinstance(system, Mapping) else ""
    base = str(sources.build.get("source_ami", ""))
    ancestor = Component(
        name=str(sources.build.get("source_ami_name") or name or sources.materials["os"]), version=base,
        type=ComponentType.OPERATING_SYSTEM, bom_ref="base-ami",
        properties=_properties(ami=base),
    )  # fmt: skip
    digest = str(report.plan.get("digest", ""))
    return Component(
        name=report.name, type=ComponentType.OPERATING_SYSTEM, version=report.image or digest, bom_ref="image",
        pedigree=Pedigree(ancestors=[ancestor]) if base else None,
        properties=_properties(ami=report.image, plan=digest, region=report.region),
    )  # fmt: skip


def package_url(package: Mapping[str, str], system: str, version: str) -> PackageURL:
    """The purl of a package in materials.json, types deb and rpm of purl-spec."""
    epoch = package.get("epoch", "")
    qualifiers = {"arch": package["architecture"], "distro": f"{system}-{version}"}
    if epoch not in ("", "0"):
        qualifiers["epoch"] = epoch
    namespace = _NAMESPACES.get(system, system)
    return PackageURL(package["kind"], namespace, package["name"], package["version"], qualifiers)


def planned_repositories(plan: Mapping[str, object]) -> dict[str, str]:
    """Package → URL of the repository that the plan takes it from. Images keep no lists that apt could be asked."""
    repositories: dict[str, str] = {}
    for name, section in plan.items():
        repository = section.get("repository") if isinstance(section, Mapping) else None
        if isinstance(repository, Mapping) and repository.get("url"):
            where = f"{repository['url']} {repository.get('suite', '')}".strip()
            repositories |= dict.fromkeys(sorted(file_account.planned_names({name: section})), where)
    return repositories


def _packages(materials: Mapping[str, Any], planned: Mapping[str, str]) -> Iterable[Component]:
    system, version = str(materials["os"]), str(materials["os_version"])
    for package in materials["packages"]:
        url = package_url(package, system, version)
        repository = package["repository"] or planned.get(package["name"], "")
        address = repository.split(" ")[0]
        reference = ExternalReference(type=ExternalReferenceType.DISTRIBUTION, url=XsUri(address))
        yield Component(
            name=package["name"], version=package["version"], type=ComponentType.LIBRARY, purl=url,
            bom_ref=url.to_string(), publisher=package["vendor"] or None,
            external_references=[reference] if "://" in address else [],
            properties=_properties(repository=repository, source=package["source"]),
        )  # fmt: skip


def _modules(sources: Sources) -> Iterable[Component]:
    for module in sources.materials["modules"]:
        yield Component(
            name=module["name"], version=module["version"] or None, type=ComponentType.DEVICE_DRIVER,
            bom_ref=f"module:{module['path']}", hashes=_hashes(sources.inventory, module["path"]),
            properties=_properties(
                path=module["path"], signer=module["signer"], vermagic=module["vermagic"], license=module["license"]
            ),
        )  # fmt: skip


def _files(report: Report, sources: Sources, roles_folders: Sequence[Path]) -> Iterable[Component]:
    """Files of no package that a role's footprint declares."""
    if sources.inventory is None:
        return
    variables = file_account.plan_variables(report.plan)
    footprints, _ = file_account.load_footprints(list(roles_folders), report.roles, variables)
    rules = [rule for footprint in footprints.values() for rule in footprint.files]
    for entry in sources.inventory.entries.values():
        if entry.kind != "f" or entry.packages:
            continue
        rule = next((rule for rule in rules if rule.matches(entry.path)), None)
        if rule is not None:
            yield Component(
                name=_printable(entry.path), type=ComponentType.FILE, bom_ref=f"file:{_printable(entry.path)}",
                hashes=_hashes(sources.inventory, entry.path), properties=_properties(role=rule.role),
            )  # fmt: skip


def _hashes(inventory: Inventory | None, path: str) -> list[HashType]:
    entry = inventory.entries.get(path) if inventory else None
    return [HashType(alg=HashAlgorithm.SHA_256, content=entry.sha256)] if entry and entry.sha256 else []


def _printable(path: str) -> str:
    return path.encode("utf-8", "surrogateescape").decode("utf-8", "backslashreplace")
