"""The rules between versions, and between the values of a recipe: each is a function that yields conflicts.

resolve_context      what rules are given: recipe, system, node family, accelerators, facts
driver               rules of the driver and of the libraries built on it
distribution         rules of a driver from the operating system's own archive
grid                 rules of NVIDIA's GRID driver from AWS's bucket
network              rules of EFA, aws-ofi-nccl and NCCL
image                rules of instance types, system, node family and accelerators
system               rules of the Lustre client and of MIG
telemetry            rules of the CloudWatch agent and the driver's nvidia-smi
volume               the rule of the root volume

A new rule is a function in one of them and an entry in its `*_RULES`.
"""

from gpu_ami.recipes.rules.distribution import DISTRIBUTION_RULES
from gpu_ami.recipes.rules.driver import DRIVER_RULES, runs_natively
from gpu_ami.recipes.rules.image import COMPONENT_RULES, IMAGE_RULES, base_keeps_its_own, python_for
from gpu_ami.recipes.rules.network import NETWORK_RULES, bundled_plugin
from gpu_ami.recipes.rules.resolve_context import COMPONENTS, LABELS, Assignment, Conflict, ResolveContext
from gpu_ami.recipes.rules.telemetry import TELEMETRY_RULES, unknown_layout

__all__ = [
    "COMPONENTS",
    "COMPONENT_RULES",
    "DISTRIBUTION_RULES",
    "DRIVER_RULES",
    "IMAGE_RULES",
    "LABELS",
    "NETWORK_RULES",
    "TELEMETRY_RULES",
    "Assignment",
    "Conflict",
    "ResolveContext",
    "base_keeps_its_own",
    "bundled_plugin",
    "python_for",
    "runs_natively",
    "unknown_layout",
]
