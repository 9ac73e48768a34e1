"""Whether JSON is as the schemas say: of what the tests make, and of all that a command prints in a test."""

from __future__ import annotations

import argparse
import functools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from gpu_ami import commands


@functools.cache
def _validator(name: str) -> Any:
    import jsonschema
    import referencing

    from gpu_ami.json_schemas import SCHEMAS

    resources = [
        (f"{kind}.json", referencing.Resource.from_contents(json.loads(json.dumps(schema()))))
        for kind, schema in SCHEMAS.items()
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
    """`cli.print_outcome`, which compares the data of a command's result with the schema first."""

    def show_valid(outcome: commands.Outcome, args: argparse.Namespace) -> None:
        if args.json and outcome.data is not None:
            valid(json.loads(json.dumps(outcome.data, default=str)), args.command)
        show(outcome, args)

    return show_valid
