"""`gpu-ami plan`: resolves a recipe and writes the plan; explains it; keeps its lock."""

from __future__ import annotations

import argparse
import datetime
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami import out_lock
from gpu_ami.commands import Outcome, options
from gpu_ami.progress import Progress

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.plan import Plan

_EPILOG = """\
A recipe (variables/recipes/*.yml) is short; values that it does not set come from the layers below it: defaults.yml,
its operating system, its node family. The plan contains the resolved values, and is the only input of Packer, Ansible
and the checks. Versions may be exact (550.163.01), a branch (580) or newest; the plan pins them. Incompatible values
are reported together, each with the rule, its source and the nearest set that works.

examples:
  gpu-ami plan variables/recipes/debian12-gpu.yml                      out/debian12-gpu/plan.json, for the local region
  gpu-ami plan variables/recipes/debian12-gpu.yml --where aws.yml      for AWS
  gpu-ami plan variables/recipes/debian12-gpu.yml --explain            where each value comes from
  gpu-ami plan variables/recipes/debian12-gpu.yml --set cuda.version=13.0 --explain
  gpu-ami plan --check                                                 are all committed locks current?
  gpu-ami plan --diff al2023-compute                                   changes of a new plan against its lock, and why
  gpu-ami plan --diff al2023-compute --set cuda.version=13.0           and with another value
  gpu-ami plan --diff al2023-compute ubuntu2204-compute                how two images differ
  gpu-ami plan --lock variables/recipes/al2023-compute.yml             write its lock; with --where, its source AMI too
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "plan", help="resolve a recipe into plan.json", description="Resolves a recipe into a plan.", epilog=_EPILOG
    )
    parser.add_argument(
        "recipe", type=Path, nargs="*", metavar="RECIPE", help="recipes; --check, --diff, --lock: default all"
    )
    options.add_where(parser, "place to use (YAML), or `local`; default: the local region")
    parser.add_argument(
        "-o", "--out", type=options.output_folder, metavar="OUT", help="folder to write to; default: out/<image>"
    )
    parser.add_argument(
        "--set",
        action="append",
        default=[],
        metavar="KEY=VALUE",
        dest="overrides",
        help="override a value (highest precedence)",
    )
    explain = "print every value and its origin; exit code 2 if they conflict; write nothing"
    diff = "print how a new plan differs from its lock, and why; or how two RECIPEs differ"
    instead = parser.add_mutually_exclusive_group()
    instead.add_argument(
        "--explain",
        action="store_true",
        help=explain,
    )
    instead.add_argument("--check", action="store_true", help="fail if a committed lock is out of date; write nothing")
    instead.add_argument(
        "--diff",
        action="store_true",
        help=diff,
    )
    instead.add_argument("--lock", action="store_true", help="write variables/locks/<image>.json")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.errors import UsageError
    from gpu_ami.recipes import all_recipes, find_recipe

    recipes = [find_recipe(recipe) for recipe in args.recipe]
    _refuse_without_meaning(args)
    if args.diff and len(recipes) == 2:
        return _compare_recipes(recipes[0], recipes[1], tuple(args.overrides))
    if args.check or args.diff:
        return _compare(recipes or all_recipes(), tuple(args.overrides), failing=args.check)
    if args.lock:
        return _lock(recipes or all_recipes(), args.where)
    if len(recipes) != 1:
        raise UsageError("gpu-ami plan takes one RECIPE", hint="gpu-ami recipes lists them")
    recipe = recipes[0]
    if args.explain:
        return _explain(recipe, args.overrides)
    return _plan(recipe, args, progress)


def _refuse_without_meaning(args: argparse.Namespace) -> None:
    """UsageError: an option that the chosen action would ignore."""
    from gpu_ami.errors import UsageError

    action = next((name for name in ("explain", "check", "diff", "lock") if getattr(args, name)), "")
    if args.overrides and action in ("check", "lock"):
        hint = "a lock is of the recipe as it is: write the value into it; --diff --set shows what it would change"
        raise UsageError(f"--set cannot be used with --{action}", hint=hint)
    if args.diff and len(args.recipe) > 2:
        hint = "one recipe is compared with its lock, two with each other, none: all with their locks"
        raise UsageError(f"--diff: expected at most two RECIPEs, got {len(args.recipe)}", hint=hint)
    if args.where and action in ("explain", "check", "diff"):
        raise UsageError(f"--where cannot be used with --{action}", hint="recipes and locks hold for every place")
    if args.out and action:
        raise UsageError(f"--out cannot be used with --{action}", hint="only a plan is written to a folder")


def _plan(recipe: Path, args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.plan import cost, make_plan, require_digests
    from gpu_ami.recipes import facts_of, support_of
    from gpu_ami.recipes.facts import fact_queries

    place = _place(args.where)
    with progress.stage(f"plan {recipe.stem}"):
        plan = make_plan(recipe, place, args.overrides)
        require_digests(plan)
        out = args.out or Path("out") / plan.image
        out_lock.hold(out)
        written = plan.write(out, place)
        dates = [row["date"] for row in plan.document["sources"]]
        progress.note(f"facts: {fact_queries.age(dates, datetime.date.today())}")
    notes = [f"note: {note}" for note in [*plan.document["notes"], *_not_built_here(plan, args.where)]]
    system = plan.document["os"]
    notes.append(f"support: {support_of(facts_of(recipe), system['id'], system['version'])}")
    types = [row["name"] for row in plan.document["instance_types"]]
    # Machines of the local region cost nothing.
    costs = [cost.estimate(plan.document, types, build=True).text] if args.where else []
    return Outcome("\n".join([f"{written}  {plan.digest}", *costs, *notes]), dict(plan.document))


def _not_built_here(plan: Plan, where: Path | None) -> list[str]:
    """What keeps the local region from building a plan that is made for it."""
    from gpu_ami.errors import UsageError
    from gpu_ami.region import provider

    try:
        if where is None:
            provider().require_base_image(plan.document)
    except UsageError as error:
        return [f"{error.message}: build it on AWS with --where FILE", *error.details]
    return []


def _place(where: Path | None) -> Place:
    if where is not None:
        from gpu_ami.cloud import load_place

        return load_place(where)
    from gpu_ami.region import provider

    return provider().place()


def _explain(recipe: Path, overrides: list[str]) -> Outcome:
    from gpu_ami.recipes import explain, facts_of, read_recipe

    facts = facts_of(recipe)
    values = explain(read_recipe(recipe, facts, overrides), facts)
    key_width, layer_width = (max(map(len, column)) for column in zip(*((v.key, v.layer) for v in values), strict=True))
    lines = [f"{value.key:<{key_width}}  {value.layer:<{layer_width}}  {value.text}" for value in values]
    conflicts = any(value.conflict for value in values)
    return Outcome("\n".join(lines), [asdict(value) for value in values], 2 if conflicts else 0)


def _compare_recipes(first: Path, second: Path, overrides: tuple[str, ...]) -> Outcome:
    from gpu_ami.plan import compare

    differences = compare(first, second, overrides)
    lines = [f"{first.stem} → {second.stem}:", *(f"  {change}" for change in differences)]
    return Outcome("\n".join(lines if differences else ["no difference"]), [vars(change) for change in differences])


def _compare(recipes: list[Path], overrides: tuple[str, ...], *, failing: bool) -> Outcome:
    from gpu_ami.errors import UsageError
    from gpu_ami.plan import changes, locks_folder

    by_image = {recipe.stem: changes(recipe, locks_folder(recipe), overrides) for recipe in recipes}
    stale = {image: some for image, some in by_image.items() if some}
    lines = [line for image, some in stale.items() for line in (f"{image}:", *(f"  {change}" for change in some))]
    if failing and stale:
        raise UsageError(
            f"{len(stale)} of {len(by_image)} locks are stale: {', '.join(stale)}",
            details=lines,
            hint="gpu-ami plan --lock RECIPE writes it again; review the difference and commit it",
        )
    data = {image: [vars(change) for change in some] for image, some in by_image.items()}
    current = len(by_image) - len(stale)
    return Outcome("\n".join([*lines, f"{current} of {len(by_image)} locks are current"]), data)


def _lock(recipes: list[Path], where: Path | None) -> Outcome:
    from gpu_ami.plan import locks_folder, render_lock, resolve_source_ami, write_lock

    written = []
    for recipe in recipes:
        lock = render_lock(recipe, locks_folder(recipe))
        if where is not None:
            from gpu_ami.cloud import Cloud, load_place

            place = load_place(where)
            source_ami = resolve_source_ami(Cloud(place), lock["plan"])
            lock["source_amis"] = {**lock["source_amis"], place.region: source_ami}
        written.append(str(write_lock(lock, locks_folder(recipe))))
    return Outcome("\n".join(written), written)
