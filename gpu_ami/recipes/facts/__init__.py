"""Facts: the tables of variables/facts, each row with its source, and how their versions compare.

tables               the tables, read and checked once; the rows that a plan relies on; names of architectures
fact_queries         answers to questions about the facts
versions             order, branches and constraints of versions
additions            releases that the tables lack, and rows for them in a site's own tables
"""

from gpu_ami.recipes.facts.additions import add_row, not_released, released
from gpu_ami.recipes.facts.tables import ARCHITECTURES, VARIABLES, Facts, Row, Sources, judged, load_facts, read_yaml
from gpu_ami.recipes.facts.versions import (
    NEWEST,
    around,
    at_least,
    at_most,
    branch,
    matching,
    nearest_branch_first,
    nearest_first,
    parts,
)

__all__ = [
    "ARCHITECTURES",
    "NEWEST",
    "VARIABLES",
    "Facts",
    "Row",
    "Sources",
    "add_row",
    "around",
    "at_least",
    "at_most",
    "branch",
    "judged",
    "load_facts",
    "matching",
    "nearest_branch_first",
    "nearest_first",
    "not_released",
    "parts",
    "read_yaml",
    "released",
]
