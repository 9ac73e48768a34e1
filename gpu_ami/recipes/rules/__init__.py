"""The rules between versions, and between the values of a recipe: each is a function that yields conflicts.

component            what a component declares of itself
resolve_context      what rules are given: recipe, system, node family, accelerators, facts
driver               rules of the driver and of the libraries built on it
distribution         rules of a driver from the operating system's own archive
grid                 rules of NVIDIA's GRID driver from AWS's bucket
network              rules of EFA, aws-ofi-nccl and NCCL
incompatibilities    combinations that are known not to work, and what a recipe accepts of them
image                rules of instance types, system, node family and accelerators
telemetry            rules of the CloudWatch agent and the driver's nvidia-smi
template_variable    names and texts of variables of Packer templates
volume               the rule of the root volume

A new rule is a function in one of them and an entry in its `*_RULES`; a rule of one component alone is in its own file
(gpu_ami/recipes/components).
"""

from gpu_ami.recipes.rules.component import (
    NO_KEYS,
    Component,
    OwnLog,
    built_from_tag,
    version_kind,
    versioned,
)
from gpu_ami.recipes.rules.distribution import DISTRIBUTION_RULES, distribution_has_driver
from gpu_ami.recipes.rules.driver import DRIVER_RULES, runs_natively
from gpu_ami.recipes.rules.grid import GRID_RULES
from gpu_ami.recipes.rules.image import IMAGE_RULES, base_keeps_its_own, has_packages, python_for
from gpu_ami.recipes.rules.incompatibilities import INCOMPATIBILITY_RULES, refusal
from gpu_ami.recipes.rules.incompatibilities import notes as accepted_notes
from gpu_ami.recipes.rules.network import NETWORK_RULES, bundled_plugin
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext, Rule
from gpu_ami.recipes.rules.telemetry import TELEMETRY_RULES, unknown_layout
from gpu_ami.recipes.rules.template_variable import LATEST, TemplateVariable, Understood, latest, plain
from gpu_ami.recipes.rules.volume import volume_has_room

__all__ = [
    "DISTRIBUTION_RULES",
    "DRIVER_RULES",
    "GRID_RULES",
    "IMAGE_RULES",
    "INCOMPATIBILITY_RULES",
    "LATEST",
    "NETWORK_RULES",
    "NO_KEYS",
    "TELEMETRY_RULES",
    "Assignment",
    "Component",
    "Conflict",
    "OwnLog",
    "ResolveContext",
    "Rule",
    "TemplateVariable",
    "Understood",
    "accepted_notes",
    "base_keeps_its_own",
    "built_from_tag",
    "bundled_plugin",
    "distribution_has_driver",
    "has_packages",
    "latest",
    "plain",
    "python_for",
    "refusal",
    "runs_natively",
    "unknown_layout",
    "version_kind",
    "versioned",
    "volume_has_room",
]
