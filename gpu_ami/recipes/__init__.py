"""From a recipe to a plan's document: facts, the recipe's grammar, its layers, and their resolution.

lookup               the recipes that there are, found by name
layers               a recipe and the layers below it, merged; the origin of every value
grammar              the keys of a recipe
site                 a site's own roles, facts, checks and faults
facts                the tables of variables/facts
fact_queries         answers to questions about the facts
versions             order, branches and constraints of versions
architectures        each architecture's name in EC2, Debian, rpm and GNU triplets
resolver             recipe and facts become the plan's document
resolve_context      the context of the rules: recipe, system, node family, accelerators
solver               a version for every component, or all conflicts
rules_driver         rules of the driver and of the libraries built on it
rules_network        rules of EFA, aws-ofi-nccl and NCCL
rules_image          rules of instance types, system, node family and accelerators
known_releases       releases that are known for a system, and what `newest` takes
packages             the plan's section of each component
driver_packages      the plan's sections of driver, fabric manager and IMEX
system_sections      the plan's sections of kernel, node family, Lustre client and tuning
agent                the CloudWatch agent's configuration
notes                notes of a plan that can be built
citations            the facts that a plan relies on
explanation          where each value of a recipe comes from
importer             an older Packer template becomes a recipe
template_leftovers   keys of a template that have no equivalent in a recipe
reference            the reference of the recipe's keys, for docs/recipes.md
"""

from gpu_ami.recipes.architectures import ARCHITECTURES
from gpu_ami.recipes.explanation import ExplainedValue, explain
from gpu_ami.recipes.facts import VARIABLES, Facts, load_facts
from gpu_ami.recipes.importer import import_template, place_text, recipe_text
from gpu_ami.recipes.layers import Recipe, facts_of, read_recipe
from gpu_ami.recipes.lookup import all_recipes, find_recipe, new_recipe_folder, recipe_folders
from gpu_ami.recipes.resolve_context import COMPONENTS
from gpu_ami.recipes.resolver import resolve
from gpu_ami.recipes.system_sections import kernel_section
from validator.plan_document import CloudWatchAgent, PlanDocument, ResolvedPlan, SourceAmi, section

__all__ = [
    "ARCHITECTURES",
    "COMPONENTS",
    "VARIABLES",
    "CloudWatchAgent",
    "ExplainedValue",
    "Facts",
    "PlanDocument",
    "Recipe",
    "ResolvedPlan",
    "SourceAmi",
    "all_recipes",
    "explain",
    "facts_of",
    "find_recipe",
    "import_template",
    "kernel_section",
    "load_facts",
    "new_recipe_folder",
    "place_text",
    "read_recipe",
    "recipe_folders",
    "recipe_text",
    "resolve",
    "section",
]
