"""`gpu-ami plan`: resolves a recipe and writes the plan; explains it; keeps its lock."""

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
Versions may be exact (550.163.01), a branch (580) or newest; the plan pins them. Values that do not go together are
all named at once, each with the rule, its source and the nearest set that works.

examples:
  gpu-ami plan variables/recipes/debian12-gpu.yml                      out/debian12-gpu/plan.json, for the local region
  gpu-ami plan variables/recipes/debian12-gpu.yml --where aws.yml      for AWS
  gpu-ami plan variables/recipes/debian12-gpu.yml --explain            where each value comes from
  gpu-ami plan variables/recipes/debian12-gpu.yml --set cuda.version=13.0 --explain
  gpu-ami plan --check                                                 are all committed locks current?
  gpu-ami plan --diff variables/recipes/al2023-compute.yml             what would change, and why
  gpu-ami plan --lock variables/recipes/al2023-compute.yml             write its lock; with --where, its source AMI too
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plan", help="resolve a recipe into plan.json", description="Resolves a recipe into a plan.", epilog=_EPILOG
    )
    parser.add_argument("recipe", type=Path, nargs="*", metavar="RECIPE", help="recipe files; locks: default all")
    parser.add_argument("--where", type=Path, metavar="FILE", help="place to carry it out; default: the local region")
    parser.add_argument("-o", "--out", type=Path, metavar="OUT", help="folder to write to; default: out/<image>")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", dest="overrides", help="a value above all layers"
    )
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument("--explain", action="store_true", help="print every value and its origin; write nothing")
    instead.add_argument("--check", action="store_true", help="fail where a committed lock is stale; write nothing")
    instead.add_argument("--diff", action="store_true", help="print what a plan would change in its lock, and why")
    instead.add_argument("--lock", action="store_true", help="write variables/locks/<image>.json")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.errors import UsageError

    if args.check or args.diff:
        return _compare(args.recipe or _all_recipes(), failing=args.check)
    if args.lock:
        return _lock(args.recipe or _all_recipes(), args.where)
    if len(args.recipe) != 1:
        raise UsageError("gpu-ami plan takes one RECIPE", hint="gpu-ami recipes lists them")
    recipe = args.recipe[0]
    if args.explain:
        return _explain(recipe, args.overrides)
    return _plan(recipe, args, progress)


def _plan(recipe: Path, args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.plan import make_plan

    place = _place(args.where)
    with progress.stage(f"plan {recipe.stem}"):
        plan = make_plan(recipe, place, args.overrides)
        written = plan.write(args.out or Path("out") / plan.image, place)
    notes = [f"note: {note}" for note in plan["notes"]]
    return Outcome("\n".join([f"{written}  {plan.digest}", *notes]), dict(plan.document))


def _all_recipes() -> list[Path]:
    from gpu_ami.recipes.facts import VARIABLES

    return sorted((VARIABLES / "recipes").glob("*.yml"))


def _place(where: Path | None) -> Place:
    if where is not None:
        from gpu_ami.place import load_place

        return load_place(where)
    from gpu_ami.local.region import local_place

    return local_place()


def _explain(recipe: Path, overrides: list[str]) -> Outcome:
    from gpu_ami.recipes.explain import explain
    from gpu_ami.recipes.facts import load_facts
    from gpu_ami.recipes.layers import read_recipe

    facts = load_facts()
    rows = explain(read_recipe(recipe, facts, overrides), facts)
    widths = [max(len(row[column]) for row in rows) for column in (0, 2)]
    lines = [f"{path:<{widths[0]}}  {origin:<{widths[1]}}  {value}" for path, value, origin in rows]
    data = [{"key": path, "value": value, "origin": origin} for path, value, origin in rows]
    return Outcome("\n".join(lines), data)


def _compare(recipes: list[Path], *, failing: bool) -> Outcome:
    from gpu_ami.errors import UsageError
    from gpu_ami.lock import changes

    found = {recipe.stem: changes(recipe) for recipe in recipes}
    stale = {image: some for image, some in found.items() if some}
    lines = [line for image, some in stale.items() for line in (f"{image}:", *(f"  {change}" for change in some))]
    if failing and stale:
        raise UsageError(
            f"{len(stale)} of {len(found)} locks are stale: {', '.join(stale)}",
            details=lines,
            hint="gpu-ami plan --lock RECIPE writes it anew; review the difference and commit it",
        )
    data = {image: [vars(change) for change in some] for image, some in found.items()}
    current = len(found) - len(stale)
    return Outcome("\n".join([*lines, f"{current} of {len(found)} locks are current"]), data)


def _lock(recipes: list[Path], where: Path | None) -> Outcome:
    from gpu_ami.lock import render_lock, resolve_source_ami, write_lock

    written = []
    for recipe in recipes:
        lock = render_lock(recipe)
        if where is not None:
            from gpu_ami.aws import Cloud
            from gpu_ami.place import load_place

            place = load_place(where)
            lock["source_amis"] = {**lock["source_amis"], place.region: resolve_source_ami(Cloud(place), lock["plan"])}
        written.append(str(write_lock(lock)))
    return Outcome("\n".join(written), written)
