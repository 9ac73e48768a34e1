"""The rules between versions, and between the values of a recipe: each is a function that yields conflicts.

component            what a component declares of itself, and of variables of Packer templates
observed             how a component is observed: the sources of its version in any system
resolve_context      what rules are given: recipe, system, node family, accelerators, facts
driver               the driver from NVIDIA, the system's archive, GRID's bucket or a base AMI; libraries built on it
system               rules of instance types, system, node family, accelerators and root volume
interconnect         rules of EFA, aws-ofi-nccl and NCCL
kernel_modules       on which kernel series modules are built that are not of the kernel
incompatibilities    combinations that are known not to work, and what a recipe accepts of them
advisories           security bulletins of what a plan installs

A new rule is a function in one of them and an entry in its `*_RULES`; a rule of one component alone is in its own file
(gpu_ami/recipes/components).
"""

from gpu_ami.recipes.rules.advisories import SEVERITIES, advisory_rule
from gpu_ami.recipes.rules.advisories import notes as advisory_notes
from gpu_ami.recipes.rules.component import (
    COMMIT,
    COMMIT_OF_TAG,
    LATEST,
    NO_KEYS,
    Component,
    OwnLog,
    TemplateVariable,
    Understood,
    built_from_tag,
    commit_is_of_tag,
    latest,
    plain,
    version_kind,
    versioned,
)
from gpu_ami.recipes.rules.driver import (
    BRANCH_RULES,
    DISTRIBUTION_RULES,
    DRIVER_RULES,
    GRID_RULES,
    distribution_has_driver,
    runs_natively,
)
from gpu_ami.recipes.rules.incompatibilities import INCOMPATIBILITY_RULES, TELEMETRY_RULES, refusal, unknown_layout
from gpu_ami.recipes.rules.incompatibilities import notes as accepted_notes
from gpu_ami.recipes.rules.interconnect import NETWORK_RULES, bundled_plugin
from gpu_ami.recipes.rules.kernel_modules import does_not_build, kernel_module_rule
from gpu_ami.recipes.rules.observed import (
    DRIVER,
    PRESENCE,
    Observed,
    Source,
    content,
    file,
    library,
    module,
    of_document,
    package,
    program,
    record,
)
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext, Rule
from gpu_ami.recipes.rules.system import IMAGE_RULES, base_keeps_its_own, has_packages, python_for, volume_has_room

__all__ = [
    "BRANCH_RULES",
    "COMMIT",
    "COMMIT_OF_TAG",
    "DISTRIBUTION_RULES",
    "DRIVER",
    "DRIVER_RULES",
    "GRID_RULES",
    "IMAGE_RULES",
    "INCOMPATIBILITY_RULES",
    "LATEST",
    "NETWORK_RULES",
    "NO_KEYS",
    "PRESENCE",
    "SEVERITIES",
    "TELEMETRY_RULES",
    "Assignment",
    "Component",
    "Conflict",
    "Observed",
    "OwnLog",
    "ResolveContext",
    "Rule",
    "Source",
    "TemplateVariable",
    "Understood",
    "accepted_notes",
    "advisory_notes",
    "advisory_rule",
    "base_keeps_its_own",
    "built_from_tag",
    "bundled_plugin",
    "commit_is_of_tag",
    "content",
    "distribution_has_driver",
    "does_not_build",
    "file",
    "has_packages",
    "kernel_module_rule",
    "latest",
    "library",
    "module",
    "of_document",
    "package",
    "plain",
    "program",
    "python_for",
    "record",
    "refusal",
    "runs_natively",
    "unknown_layout",
    "version_kind",
    "versioned",
    "volume_has_room",
]
