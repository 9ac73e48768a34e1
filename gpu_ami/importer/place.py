"""What a template says of its region and network: the `--where` file; and what its variables' names mean.

Names of variables of the system and the network in well-known templates; a component names its own (Component):
aws-samples/aws-efa-nccl-baseami-pipeline 9d8a9273 (nvidia-efa-ami_base/*.yml); awslabs/amazon-eks-ami 4550a9a8
(templates/al2023); aws/amazon-ecs-ami f2c020ed (variables.pkr.hcl). Read 2026-11-25.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpu_ami.cloud import takes
from gpu_ami.importer.template import Template, is_resolved
from gpu_ami.recipes import components
from gpu_ami.recipes.rules import TemplateVariable

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


# `_al2023` and the like at the end name a system of several.
_SYSTEM_SUFFIX = re.compile(r"_(al\d+|amzn\d*|ubuntu_?\d*|ul\d+|debian\d*|rhel\d*)$")
KUBERNETES = ("kubernetes_version", "k8s_version", "eks_version", "kubernetes_semver", "eks_kubernetes_version")
ECS = ("ecs_agent_version", "ecs_init_rev", "ecs_version")
ARCHITECTURE = ("arch", "architecture")
DESCRIPTION = ("ami_description",)
FILTER_NAME = ("source_ami_filter_name", "source_ami_name", "source_ami_filter", "base_ami_name")
FILTER_OWNERS = ("source_ami_owners", "source_ami_owner", "source_ami_owner_id", "base_ami_owner")
INSTANCE_TYPE = ("instance_type", "builder_instance_type", "build_instance_type", "aws_instance_type")
# Key of a --where file → variables.
PLACE: Mapping[str, tuple[str, ...]] = {
    "region": ("region", "aws_region", "build_region"),
    "profile": ("aws_profile",),
    "subnet_id": ("subnet_id", "aws_subnet_id"),
    "security_group_ids": ("security_groupids", "security_group_ids", "security_group_id", "security_groups"),
    "instance_profile": ("iam_instance_profile", "instance_profile"),
    "kms_key_id": ("kms_key_id", "kms_key"),
    "ssh_interface": ("ssh_interface",),
    "source_ami": ("build_ami", "source_ami", "source_ami_id", "base_ami", "base_ami_id"),
}


def component_of(variable: str) -> tuple[str, TemplateVariable] | None:
    """The component whose version a variable holds, and what reads it."""
    name = _SYSTEM_SUFFIX.sub("", variable.lower().replace("-", "_"))
    declared = [(one.name, one.template) for one in components.components().values() if one.template]
    return next(((key, template) for key, template in declared if re.fullmatch(template.names, name)), None)
