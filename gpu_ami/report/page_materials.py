"""What the image is made of, in report.html: the bill of materials beside the report (CycloneDX), by origin."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpu_ami.files import read_json
from gpu_ami.report.document import Report

BOM_FILE = "bom.cdx.json"
_NO_REPOSITORY = "repository not recorded"
_PROPERTY = "gpu-ami:"


@dataclass(frozen=True)
class Origin:
    """Components of one kind and origin: a repository, a signer, a role. entries: name and version."""

    name: str
    entries: Sequence[tuple[str, str]]


@dataclass(frozen=True)
class Materials:
    """The bill of materials. serial: its serial number; base: the AMI that the image was built on, "" if not known."""

    serial: str
    base: str
    packages: Sequence[Origin]
    modules: Sequence[Origin]
    files: Sequence[Origin]

    @property
    def kinds(self) -> list[tuple[str, int, Sequence[Origin]]]:
        """Each kind that is there: its noun, how many components, and those by origin."""
        kinds = (("package", self.packages), ("kernel module", self.modules), ("role file", self.files))
        return [(noun, sum(len(origin.entries) for origin in origins), origins) for noun, origins in kinds if origins]


def load(folder: Path) -> Materials | None:
    """The bill of materials in the folder of a report; None where there is none."""
    bom = read_json(folder / BOM_FILE)
    return None if bom is None else _materials(bom)


def _materials(bom: Mapping[str, Any]) -> Materials:
    components = [entry for entry in _list(bom.get("components")) if isinstance(entry, Mapping)]
    return Materials(
        _text(bom.get("serialNumber")),
        _base(bom),
        _by_origin(components, "library", "repository", _NO_REPOSITORY),
        _by_origin(components, "device-driver", "signer", "not signed"),
        _by_origin(components, "file", "role", "no role"),
    )


def planned_versions(report: Report) -> list[tuple[str, str]]:
    """Component and version of what the plan pins and a role of the image installs, and of its kernel."""
    return [
        (name, _text(section["version"]))
        for name, section in report.plan.items()
        if isinstance(section, Mapping) and section.get("version") and name in {"kernel", *report.roles}
    ]


def _base(bom: Mapping[str, Any]) -> str:
    image = _mapping(_mapping(bom.get("metadata")).get("component"))
    ancestors = _list(_mapping(image.get("pedigree")).get("ancestors"))
    base = _mapping(ancestors[0]) if ancestors else {}
    return " ".join(text for text in (_text(base.get("name")), _text(base.get("version"))) if text)


def _by_origin(components: Iterable[Mapping[str, Any]], kind: str, key: str, unknown: str) -> list[Origin]:
    """The largest first."""
    origins: dict[str, list[tuple[str, str]]] = {}
    for component in components:
        if component.get("type") == kind:
            entry = _text(component.get("name")), _text(component.get("version"))
            origins.setdefault(_property(component, key) or unknown, []).append(entry)
    listed = [Origin(name, sorted(entries)) for name, entries in origins.items()]
    return sorted(listed, key=lambda origin: (-len(origin.entries), origin.name))


def _property(component: Mapping[str, Any], key: str) -> str:
    rows = (_mapping(row) for row in _list(component.get("properties")))
    return next((_text(row.get("value")) for row in rows if row.get("name") == f"{_PROPERTY}{key}"), "")


def _text(value: object) -> str:
    return "" if value is None else str(value)


def _list(value: object) -> list[Any]:
    return value if isinstance(value, list) else []


def _mapping(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}
