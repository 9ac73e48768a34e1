"""`gpu-ami rehearse`: builds every recipe that has a base image in the local region, and judges it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.progress import Progress
    from localregion.rehearsal import Candidate, Options, Rehearsal

_EPILOG = """\
Builds each recipe in a sandbox of this host (root), checks the files of its image (tier T0), observes it without its
plan (a difference from the recipe is a FAIL), removes the image, and prints one table: recipe, base image, seconds,
verdict, and what was simulated. The recipes are those of `gpu-ami matrix`, a site's own among them; one without a
base image in the local region is listed with the reason. A failure does not stop the other recipes. OUT/<image>/ has
rehearsal.json, rehearsal.log, build.log and report.json of each.

A recipe with a verdict of an earlier run is not built again while its inputs are the same: plan, base image, roles,
template, replicas, checks. The same command therefore continues after Ctrl-C. --fresh builds all again.

An image takes about 1 GiB of the disk and is removed after it was checked; --keep keeps it, and OUT/<image> is then
a folder for `gpu-ami validate`.

--sample SEED is for CI: one recipe of each operating system and node family. The seed, such as the commit's digest,
selects one where there are several. Recipes that were left out are listed. `gpu-ami matrix --since` names the recipes
that a change affects.

exit code: the worst of all recipes: 2 recipe, 3 build failed, 1 a check failed, 4 cloud, network or machine, 5 no
           capacity; 0 if every recipe that has a base image passed

examples:
  gpu-ami rehearse                                   every recipe
  gpu-ami rehearse eks-1.35-al2023-blackwell debian12-gpu
  gpu-ami rehearse --boot                            and boots each on its smallest instance type, without restarts
  gpu-ami rehearse --list --format markdown          results of earlier runs, for a page; builds nothing
  gpu-ami rehearse --sample "$(git rev-parse HEAD)" --boot
  make recipes RECIPES=debian12-gpu                  with the set-up of this machine
"""
FORMATS = ("text", "markdown")


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "rehearse",
        help="build every recipe in the local region and check its files",
        description="Builds recipes in sandboxes of the local region and checks their images; prints one table.",
        epilog=_EPILOG,
    )
    parser.add_argument("recipe", type=Path, nargs="*", metavar="RECIPE", help="recipes or images; default: all")
    text = "folder with a folder for each image (default: %(default)s)"
    parser.add_argument(
        "-o", "--out", type=options.output_folder, default=Path("out", "rehearsals"), metavar="OUT", help=text
    )
    text = (
        "boot each image (of a sample: one) on the smallest instance type of its plan, without restarts, and check it"
        " there, too"
    )
    parser.add_argument("--boot", action="store_true", help=text)
    text = "one recipe of each system and node family, chosen by this text, such as a commit's digest"
    parser.add_argument("--sample", metavar="SEED", help=text)
    parser.add_argument("--list", action="store_true", help="print results of earlier runs; build nothing")
    parser.add_argument("--keep", action="store_true", help="keep the images in the local region")
    parser.add_argument("--fresh", action="store_true", help="also rehearse recipes that already have a verdict")
    text = "concurrent recipes (default: as many as processors, memory and disk allow)"
    parser.add_argument("--jobs", type=_count, metavar="N", help=text)
    parser.add_argument("--format", choices=FORMATS, default="text", help="of the table; default: %(default)s")
    parser.set_defaults(execute=execute, again="the same command goes on with the recipes that were not judged")


def _count(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"expected a number from 1, got {text!r}")
    return int(text)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from dataclasses import replace

    from gpu_ami.files import home_dir
    from gpu_ami.recipes import all_recipes, find_recipe
    from localregion import region
    from localregion.rehearsal import Options, results, worst_exit_code

    recipes = [find_recipe(recipe) for recipe in args.recipe] or all_recipes()
    _check_names(recipes)
    place = region.local_place(home_dir())
    place = replace(place, machines=replace(place.machines, sandbox_builder=True))
    found = _selected(recipes, place, args, progress)
    options = Options(args.keep)
    names = [recipe.stem for recipe in recipes]
    rows = sorted(_rehearse(found, args, progress, options), key=lambda row: names.index(row.image))
    shown = results.markdown(rows) if args.format == "markdown" else results.text(rows)
    return Outcome(shown, {"recipes": [row.to_json() for row in rows]}, worst_exit_code(rows))


def _selected(recipes: list[Path], place: Place, args: argparse.Namespace, progress: Progress) -> list[Candidate]:
    """A candidate for each recipe; those of a sample first, in its order."""
    from localregion.rehearsal import candidates

    found = candidates.find(recipes, args.out, place)
    sample = candidates.draw(found, args.sample) if args.sample else []
    booted = (set(sample[:1]) if args.sample else {candidate.image for candidate in found}) if args.boot else set()
    prepared = [
        candidates.prepare(candidate, place, boot=candidate.image in booted, fresh=args.fresh) for candidate in found
    ]
    if args.list:
        return [one if one.is_settled else one.left_out("not rehearsed yet") for one in prepared]
    if not args.sample:
        return prepared
    progress.note(f"sample: {', '.join(sample)}" + f"; booted: {sample[0]}" * bool(sample and args.boot))
    by_image = {candidate.image: candidate for candidate in prepared}
    others = [candidate for candidate in prepared if candidate.image not in sample]
    left = [other if other.is_settled else other.left_out("not in the sample") for other in others]
    return [*(by_image[image] for image in sample), *left]


def _check_names(recipes: list[Path]) -> None:
    """UsageError: two recipes of one name, which would share a folder."""
    names = [recipe.stem for recipe in recipes]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UsageError(f"{', '.join(twice)}: more than one recipe of that name", hint="name each image once")


def _rehearse(
    found: list[Candidate], args: argparse.Namespace, progress: Progress, options: Options
) -> list[Rehearsal]:
    """The rows of all candidates."""
    from gpu_ami import pipeline
    from gpu_ami.errors import counted
    from gpu_ami.files import home_dir
    from gpu_ami.region import SANDBOX, SessionRequest
    from localregion.rehearsal import candidates, rehearse

    found = candidates.check_host(found, progress)
    waiting = [candidate for candidate in found if not candidate.is_settled]
    if not waiting:
        return [candidate.row for candidate in found]
    boot = any(candidate.row.instance_type for candidate in waiting)
    jobs = args.jobs or rehearse.width(home_dir(), boot=boot)
    with pipeline.open_session(SessionRequest(builder=SANDBOX), progress) as session:
        progress.note(f"{counted(len(waiting), 'recipe')} to rehearse, {jobs} at a time")
        rows = rehearse.run(waiting, session, options, jobs)
    rehearsed = {row.image: row for row in rows}
    return [rehearsed.get(candidate.image, candidate.row) for candidate in found]
