"""What a template says of its region and network: the `--where` file."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpu_ami.cloud import takes
from gpu_ami.importer.interpolation import is_resolved
from gpu_ami.importer.template import Template
from gpu_ami.importer.variable_names import PLACE

# Keys of an amazon-ebs builder → of a --where file.
BUILDER_KEYS: Mapping[str, str] = {
    "region": "region",
    "profile": "profile",
    "subnet_id": "subnet_id",
    "security_group_ids": "security_group_ids",
    "security_group_id": "security_group_ids",
    "iam_instance_profile": "instance_profile",
    "kms_key_id": "kms_key_id",
    "ssh_interface": "ssh_interface",
    "ssh_port": "ssh_port",
    "source_ami": "source_ami",
}


@dataclass
class ImportedPlace:
    """values: of the `--where` file. taken: variables and builder keys that went there. remarks: what did not."""

    values: dict[str, object] = field(default_factory=dict)
    taken: set[str] = field(default_factory=set)
    remarks: list[str] = field(default_factory=list)


def place_of(template: Template) -> ImportedPlace:
    """The builder's values, else the variables of these names; what has another shape than AWS's is a remark."""
    place = ImportedPlace()
    for name, key, value in _candidates(template):
        if template.secrets.hides(name, value):
            continue  # reported with the other secrets
        converted = _converted(key, value)
        if not takes(key, converted):
            place.remarks.append(f"{name}: {str(value)!r} is no {key} of a --where file; not carried over")
        else:
            place.values.setdefault(key, converted)
        place.taken.add(name)
    if place.values:
        place.remarks.append(
            f"{', '.join(place.values)}: written to the --where file: a recipe does not say where it is built"
        )
    return place


def _candidates(template: Template) -> Iterator[tuple[str, str, object]]:
    for key, value in (template.builders[0] if template.builders else {}).items():
        if key in BUILDER_KEYS and value not in (None, "", []) and is_resolved(value):
            yield f"builders[0].{key}", BUILDER_KEYS[key], value
    for key, names in PLACE.items():
        for name in names:
            value = template.variables.get(name)
            if value not in (None, "", []) and is_resolved(value):
                yield name, key, value


def _converted(key: str, value: object) -> object:
    if key == "security_group_ids":
        items = value if isinstance(value, list) else str(value).split(",")
        return [str(item).strip() for item in items if str(item).strip()]
    return int(str(value)) if key == "ssh_port" and str(value).isdigit() else str(value)
