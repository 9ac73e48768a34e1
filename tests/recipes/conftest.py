"""A recipe's text as what the rules and sections judge."""

from __future__ import annotations

from pathlib import Path

import yaml

from gpu_ami.recipes.facts import load_facts
from gpu_ami.recipes.layers import layered
from gpu_ami.recipes.resolve_context import World

FACTS = load_facts()


def world(recipe: str = "", *, os: str = "al2023", types: str = "g5.xlarge", node: str = "ec2") -> World:
    """The World of a recipe: all its layers, with the YAML text `recipe` on top."""
    document = {"flag": "x", "os": os, "node": node, "instance_types": types.split()} | (yaml.safe_load(recipe) or {})
    return World(layered(Path("image.yml"), document, "0" * 64, FACTS).values, FACTS)
