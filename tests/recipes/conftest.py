"""A recipe's text as what the rules and sections judge."""

from __future__ import annotations

from pathlib import Path

import yaml

from gpu_ami.recipes.components import components
from gpu_ami.recipes.facts.tables import load_facts
from gpu_ami.recipes.layers import layered
from gpu_ami.recipes.rules.resolve_context import ResolveContext

FACTS = load_facts()


def context(recipe: str = "", *, os: str = "al2023", types: str = "g5.xlarge", node: str = "ec2") -> ResolveContext:
    """The ResolveContext of a recipe: all its layers, with the YAML text `recipe` on top."""
    document = {"flag": "x", "os": os, "node": node, "instance_types": types.split()} | (yaml.safe_load(recipe) or {})
    return ResolveContext(layered(Path("image.yml"), document, "0" * 64, FACTS).values, FACTS, components())
