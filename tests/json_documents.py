"""Whether JSON is as docs/schemas/ say: of what the tests make, and of all that a command prints in a test."""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from gpu_ami import commands

SCHEMAS = Path(__file__).resolve().parents[1] / "docs" / "schemas"


@functools.cache
def _validator(name: str) -> Any:
    import jsonschema
    import referencing

    resources = [
        (path.name, referencing.Resource.from_contents(json.loads(path.read_text("utf-8"))))
        for path in sorted(SCHEMAS.glob("*.json"))
    ]
    registry: Any = referencing.Registry().with_resources(resources)
    return jsonschema.Draft202012Validator({"$ref": f"commands.json#/$defs/{name}"}, registry=registry)


def valid(data: Any, name: str) -> None:
    """The data is as the schema of a command says, and no key holds a space."""
    _validator(name).validate(data)
    spaced = {key for key in keys(data) if re.search(r"\s", key)}
    assert {key for key in spaced if not key.startswith("NVIDIA ")} == set()  # a GPU's name, as nvidia-smi prints it


def keys(data: Any) -> Iterator[str]:
    if isinstance(data, dict):
        yield from data
        data = list(data.values())
    if isinstance(data, list):
        for item in data:
            yield from keys(item)


def checked(show: Callable[..., None]) -> Callable[..., None]:
    """`cli._print`, which compares the data of a command's result with the schema first."""

    def show_valid(outcome: commands.Outcome, args: argparse.Namespace) -> None:
        if args.json and outcome.data is not None:
            valid(json.loads(json.dumps(outcome.data, default=str)), args.command)
        show(outcome, args)

    return show_valid
