"""From a recipe to a plan's document: facts, the recipe's grammar, its layers, and their resolution.

layers               the keys of a recipe; a recipe and the layers below it, merged; where each value comes from
site                 a site's own roles, facts, checks and faults; its alarms with their runbooks
resolver             recipe and facts become the plan's document
solver               a version for every component, or all conflicts; releases that are known, and what `newest` takes
agent                the CloudWatch agent's configuration
notes                notes of a plan that can be built; until when systems get updates
reference            the reference of the recipe's keys, for docs/recipes.md

Packages: components (what each is called, needs, installs), facts (the tables of variables/facts) and
rules (between versions, and between a recipe's values).
"""

from gpu_ami.recipes import components
from gpu_ami.recipes.facts import ARCHITECTURES, VARIABLES, Facts, load_facts
from gpu_ami.recipes.layers import (
    ExplainedValue,
    Recipe,
    all_recipes,
    explain,
    facts_of,
    find_recipe,
    new_recipe_folder,
    read_recipe,
    recipe_folders,
    unknown_types,
)
from gpu_ami.recipes.notes import remark_found, support_of
from gpu_ami.recipes.resolver import resolve
from gpu_ami.recipes.site import (
    ALARMS_FILE,
    URGENCIES,
    AlarmText,
    SiteAlarm,
    read_site_alarms,
    site_folder,
    site_roles_of,
)
from validator.plan_document import CloudWatchAgent, PlanDocument, ResolvedPlan, SourceAmi, section

__all__ = [
    "ALARMS_FILE",
    "ARCHITECTURES",
    "URGENCIES",
    "VARIABLES",
    "AlarmText",
    "CloudWatchAgent",
    "ExplainedValue",
    "Facts",
    "PlanDocument",
    "Recipe",
    "ResolvedPlan",
    "SiteAlarm",
    "SourceAmi",
    "all_recipes",
    "components",
    "explain",
    "facts_of",
    "find_recipe",
    "load_facts",
    "new_recipe_folder",
    "read_recipe",
    "read_site_alarms",
    "recipe_folders",
    "remark_found",
    "resolve",
    "section",
    "site_folder",
    "site_roles_of",
    "support_of",
    "unknown_types",
]
