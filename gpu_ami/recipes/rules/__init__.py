"""The rules between versions, and between the values of a recipe: each is a function that yields conflicts.

component            what a component declares of itself, how it is observed, and of variables of Packer templates
resolve_context      what rules are given: recipe, system, node family, accelerators, facts
driver               the driver from NVIDIA, the system's archive, GRID's bucket or a base AMI; libraries built on it
system               rules of instance types, system, node family, accelerators and root volume
interconnect         rules of EFA, aws-ofi-nccl and NCCL
incompatibilities    combinations that are known not to work, kernel series of modules, security bulletins

A new rule is a function in one of them and an entry in its `*_RULES`; a rule of one component alone is in its own file
(gpu_ami/recipes/components).
"""

from gpu_ami.recipes.rules.component import (
    COMMIT,
    COMMIT_OF_TAG,
    DRIVER,
    LATEST,
    NO_KEYS,
    PRESENCE,
    Component,
    Observed,
    OwnLog,
    Source,
    TemplateVariable,
    Understood,
    built_from_tag,
    commit_is_of_tag,
    content,
    file,
    latest,
    library,
    module,
    of_document,
    package,
    plain,
    program,
    record,
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
from gpu_ami.recipes.rules.incompatibilities import (
    INCOMPATIBILITY_RULES,
    SEVERITIES,
    TELEMETRY_RULES,
    accepted_notes,
    advisory_notes,
    advisory_rule,
    does_not_build,
    kernel_module_rule,
    refusal,
    runtime_advisories,
    unestablished_modules,
    unknown_layout,
)
from gpu_ami.recipes.rules.interconnect import NETWORK_RULES, bundled_plugin
from gpu_ami.recipes.rules.resolve_context import Assignment, Conflict, ResolveContext, Rule, kernel_of_base_ami
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
    "kernel_of_base_ami",
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
    "runtime_advisories",
    "unestablished_modules",
    "unknown_layout",
    "version_kind",
    "versioned",
    "volume_has_room",
]
