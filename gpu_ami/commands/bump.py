"""`gpu-ami bump`: moves recipes to newer versions that go together."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome

if TYPE_CHECKING:
    from gpu_ami.plan import Bump
    from gpu_ami.progress import Progress

_EPILOG = """\
Takes the newest compatible versions in the facts, for the components for which a recipe has a version; no version is
lowered. A version given as a branch (580) stays a branch. The recipe and its lock are written; the summary is Markdown.
`gpu-ami facts refresh` proposes new facts, `gpu-ami sources` checks that everything is available.

policies:
  newest       the newest of everything; drivers of every branch that is supported
  production   drivers of production branches
  lts          drivers of long-term branches
  patch        the same branch of everything: driver 580.x, cuDNN 9.20.x

examples:
  gpu-ami bump debian12-gpu --dry-run
  gpu-ami bump --policy patch --summary pr.md          all recipes
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "bump", help="raise versions in recipes to newer compatible ones", epilog=_EPILOG,
        description="Raises the versions in recipes.",
    )  # fmt: skip
    parser.add_argument("recipes", type=Path, nargs="*", metavar="RECIPE", help="recipes (default: all)")
    choices = ("newest", "production", "lts", "patch")
    parser.add_argument("--policy", choices=choices, default="newest", help="which versions (default: newest)")
    parser.add_argument("--dry-run", action="store_true", help="print what would change; write nothing")
    parser.add_argument("--summary", type=Path, metavar="FILE", help="also write the Markdown summary to a file")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.files import write_text
    from gpu_ami.plan import bump_summary, propose_bump
    from gpu_ami.recipes import all_recipes, find_recipe

    recipes = [find_recipe(recipe) for recipe in args.recipes] or all_recipes()
    with progress.stage(f"bump {len(recipes)} recipes"):
        bumps = [propose_bump(recipe, args.policy) for recipe in recipes]
        if not args.dry_run:
            for bump in bumps:
                _write(bump)
    text = bump_summary(bumps)
    if args.summary:
        write_text(args.summary, f"{text}\n")
    return Outcome(text, [_data(bump, args.dry_run) for bump in bumps])


def _write(bump: Bump) -> None:
    """The recipe, and its lock where it has one."""
    from gpu_ami.files import write_text
    from gpu_ami.plan import locks_folder, render_lock, write_lock

    if not bump.changed:
        return
    write_text(bump.recipe, bump.text)
    locks = locks_folder(bump.recipe)
    if (locks / f"{bump.recipe.stem}.json").exists():
        write_lock(render_lock(bump.recipe, locks), locks)


def _data(bump: Bump, dry_run: bool) -> dict[str, Any]:
    return {
        "image": bump.recipe.stem,
        "policy": bump.policy,
        "written": bool(bump.changed) and not dry_run,
        "moves": [asdict(move) for move in bump.moves],
        "notes": list(bump.notes),
    }
