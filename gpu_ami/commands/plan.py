"""`gpu-ami plan`: resolves a recipe and writes the plan."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.commands import Outcome
from gpu_ami.log import Progress

if TYPE_CHECKING:
    from gpu_ami.place import Place

_EPILOG = """\
A recipe (variables/recipes/*.yml) is small; what it does not say comes from the layers below it: defaults.yml, its
operating system, its node family. The plan is what they resolve to, and all that Packer, Ansible and the checks read.

examples:
  gpu-ami plan variables/recipes/debian12-gpu.yml                      out/debian12-gpu/plan.json, for the local region
  gpu-ami plan variables/recipes/debian12-gpu.yml --where aws.yml      for AWS
  gpu-ami plan variables/recipes/debian12-gpu.yml --explain            where each value comes from
  gpu-ami plan variables/recipes/debian12-gpu.yml --set telemetry.interval_s=60 -o /tmp/plan
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plan", help="resolve a recipe into plan.json", description="Resolves a recipe into a plan.", epilog=_EPILOG
    )
    parser.add_argument("recipe", type=Path, metavar="RECIPE", help="recipe file, variables/recipes/<image>.yml")
    parser.add_argument("--where", type=Path, metavar="FILE", help="place to carry it out; default: the local region")
    parser.add_argument("-o", "--out", type=Path, metavar="OUT", help="folder to write to; default: out/<image>")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="a value above all layers"
    )
    parser.add_argument("--explain", action="store_true", help="print every value and its origin; write nothing")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.plan import make_plan

    if args.explain:
        return _explain(args.recipe, args.overrides)
    place = _place(args.where)
    with progress.stage(f"plan {args.recipe.stem}"):
        plan = make_plan(args.recipe, place, args.overrides)
        written = plan.write(args.out or Path("out") / plan.image, place)
    notes = [f"note: {note}" for note in plan["notes"]]
    return Outcome("\n".join([f"{written}  {plan.digest}", *notes]), dict(plan.document))


def _place(where: Path | None) -> Place:
    if where is not None:
        from gpu_ami.place import load_place

        return load_place(where)
    from gpu_ami.local.region import local_place

    return local_place()


def _explain(recipe: Path, overrides: list[str]) -> Outcome:
    from gpu_ami.recipes.facts import load_facts
    from gpu_ami.recipes.layers import explain, read_recipe

    rows = explain(read_recipe(recipe, load_facts(), overrides))
    width = max(len(path) for path, _, _ in rows)
    origin_width = max(len(origin) for _, _, origin in rows)
    lines = [f"{path:<{width}}  {origin:<{origin_width}}  {value}" for path, value, origin in rows]
    data = [{"key": path, "value": value, "origin": origin} for path, value, origin in rows]
    return Outcome("\n".join(lines), data)
