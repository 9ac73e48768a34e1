"""Facts: the tables of variables/facts, each row with its source, and how their versions compare.

tables               the tables, read and checked once; the rows a plan relies on; a site's own rows; architectures
provisional          rows of what the facts do not know: versions that a recipe names, types that EC2 describes
fact_queries         answers to questions about the facts
"""

from gpu_ami.recipes.facts.provisional import ACCEPTED as UNVERIFIED
from gpu_ami.recipes.facts.provisional import FROM_TAGS, NO_ROW, with_described, with_unknown
from gpu_ami.recipes.facts.provisional import NAMES as UNVERIFIED_NAMES
from gpu_ami.recipes.facts.tables import (
    ARCHITECTURES,
    NEWEST,
    VARIABLES,
    Facts,
    Row,
    Sources,
    add_changes,
    add_row,
    around,
    at_least,
    at_most,
    branch,
    judged,
    load_facts,
    matching,
    measured,
    nearest_branch_first,
    nearest_first,
    not_released,
    parts,
    read_yaml,
    released,
)

__all__ = [
    "ARCHITECTURES",
    "FROM_TAGS",
    "NEWEST",
    "NO_ROW",
    "UNVERIFIED",
    "UNVERIFIED_NAMES",
    "VARIABLES",
    "Facts",
    "Row",
    "Sources",
    "add_changes",
    "add_row",
    "around",
    "at_least",
    "at_most",
    "branch",
    "judged",
    "load_facts",
    "matching",
    "measured",
    "nearest_branch_first",
    "nearest_first",
    "not_released",
    "parts",
    "read_yaml",
    "released",
    "with_described",
    "with_unknown",
]
