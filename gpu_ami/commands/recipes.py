"""`gpu-ami recipes`: the images that there are, and what is in each."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome
from gpu_ami.progress import Progress

if TYPE_CHECKING:
    from gpu_ami.recipes import ResolvedPlan

_EPILOG = """\
examples:
  gpu-ami recipes                       all of them, one line for each
  gpu-ami recipes eks neuron            those with both words in name, system, node family or contents
  gpu-ami recipes --json                everything, as JSON

To add an image, write variables/recipes/<image>.yml (see docs/recipes.md) and run gpu-ami plan --lock on it.
"""
_SHOWN = ("nvidia_driver", "cuda", "efa", "neuron")


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "recipes", help="list the images and their contents", description="Lists the recipes.", epilog=_EPILOG
    )
    parser.add_argument("words", nargs="*", metavar="WORD", help="show recipes that contain all these words")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, _progress: Progress) -> Outcome:
    from gpu_ami.recipes import all_recipes, recipe_folders

    entries = [_entry(path) for path in all_recipes()]
    matching = [entry for entry in entries if all(word.lower() in _text(entry) for word in args.words)]
    header = ("image", "system", "node", "arch", "driver", "CUDA", "EFA", "Neuron", "instance types")
    rows = [header, *(_row(entry) for entry in matching)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(header) - 1)]
    lines = ["  ".join([*map(str.ljust, row, widths), row[-1]]) for row in rows]
    ended = [entry["image"] for entry in matching if entry["end_of_life"]]
    if ended:
        lines += ["", f"* past its end of life: {', '.join(ended)}"]
    where = "" if matching else f" (searched {', '.join(map(str, recipe_folders()))})"
    return Outcome("\n".join([*lines, "", f"{len(matching)} of {len(entries)} images{where}"]), matching)


def _entry(path: Path) -> dict[str, Any]:
    from gpu_ami.errors import UsageError
    from gpu_ami.recipes import facts_of, read_recipe, resolve

    try:
        plan = resolve(read_recipe(path, facts_of(path)), facts_of(path))
    except UsageError as error:
        return {"image": path.stem, "error": error.message, "end_of_life": False}
    return {
        "image": path.stem,
        "description": plan["description"],
        "os": {"id": plan["os"]["id"], "version": plan["os"]["version"]},
        "end_of_life": plan["os"]["end_of_life"] < facts_of(path).read_on,
        "node": dict(plan["node"]),
        "architecture": plan["architecture"],
        "versions": _versions(plan),
        "instance_types": [row["name"] for row in plan["instance_types"]],
        "roles": plan["roles"],
    }


def _versions(plan: ResolvedPlan) -> dict[str, str]:
    """Component of the plan (installed, or of the base AMI) → version."""
    from gpu_ami.recipes import components, section

    return {name: str(section(plan, name)["version"]) for name in components.chosen() if name in plan}


def _text(entry: dict[str, Any]) -> str:
    texts = [" ".join(value.values()) if isinstance(value, dict) else str(value) for value in entry.values()]
    return " ".join(texts).lower()


def _row(entry: dict[str, Any]) -> tuple[str, ...]:
    if "error" in entry:
        return (entry["image"], "does not resolve", "", "", "", "", "", "", entry["error"])
    system, node = (" ".join(entry[key].values()) for key in ("os", "node"))
    system += "*" if entry["end_of_life"] else ""
    versions = [entry["versions"].get(name, "-") for name in _SHOWN]
    return (entry["image"], system, node, entry["architecture"], *versions, " ".join(entry["instance_types"]))
