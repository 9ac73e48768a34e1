"""What the variables of well-known templates mean: names of the system, of the network; a component names its own.

aws-samples/aws-efa-nccl-baseami-pipeline 9d8a9273 (nvidia-efa-ami_base/*.yml); awslabs/amazon-eks-ami 4550a9a8
(templates/al2023); aws/amazon-ecs-ami f2c020ed (variables.pkr.hcl). Read 2026-11-25.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpu_ami.recipes import components
from gpu_ami.recipes.rules import TemplateVariable

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
