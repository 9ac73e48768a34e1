"""`gpu-ami facts refresh`: rows from the vendors' own metadata, printed, written, or written and tried."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.commands import Outcome
from gpu_ami.progress import Progress

if TYPE_CHECKING:
    from gpu_ami.sources import Refreshed

_TESTS = ("tests/recipes", "tests/plan", "tests/test_data.py")
_TESTS_SECONDS = 1800.0


def refresh_facts(args: argparse.Namespace, progress: Progress) -> Outcome:
    """The rows and all that is to be told. Exit 4: a source did not answer; 1: the rows failed their tests."""
    from gpu_ami.cloud import Place
    from gpu_ami.plan import make_plan
    from gpu_ami.recipes import VARIABLES, all_recipes, find_recipe, load_facts
    from gpu_ami.sources import Cache, Client, mirrored, refresh

    folder = VARIABLES / "facts"
    place = Place(name="aws", region="us-east-1")
    recipes = [find_recipe(recipe) for recipe in args.recipes] or all_recipes()
    with progress.stage(f"facts of {len(recipes)} recipes"):
        plans = [make_plan(recipe, place).document for recipe in recipes]
        client = Client(Cache(), rewrite=mirrored(args.mirror))
        today = datetime.date.today().isoformat()
        own = args.site / "facts" if args.site and (args.site / "facts").is_dir() else None
        facts = load_facts(site=own) if own else load_facts()
        found = refresh(plans, facts, lambda table: (folder / f"{table}.yml").read_text("utf-8"), client, today)
    failed: list[str] = []
    if args.apply and found.texts:
        failed = apply_rows(found, folder, args.site, recipes, progress)
    elif args.write:
        _write(found, folder, args.site)
    is_written = bool((args.write or args.apply) and found.proposals and not failed)
    return _outcome(found, is_written, failed)


def _outcome(found: Refreshed, is_written: bool, failed: Sequence[str]) -> Outcome:
    from dataclasses import asdict

    lines = [
        found.diff,
        *(f"by hand: {line}" for line in found.by_hand),
        *(f"changed: {line}" for line in found.changed),
        *(f"not asked: {line}" for line in found.errors),
        *(f"not looked at: {line}" for line in found.not_read),
        *(f"failed with these rows, which were not kept: {line}" for line in failed),
    ]
    lines.append(
        f"{len(found.proposals)} rows proposed, {len(found.by_hand)} by hand, {len(found.errors)} sources failed"
    )
    data = {
        "diff": found.diff,
        "proposals": [asdict(proposal) for proposal in found.proposals],
        "by_hand": found.by_hand,
        "errors": found.errors,
        "changed": found.changed,
        "not_read": found.not_read,
        "written": is_written,
        "failed": list(failed),
    }
    return Outcome("\n".join(line for line in lines if line), data, 1 if failed else 4 if found.errors else 0)


def _write(found: Refreshed, folder: Path, site: Path | None) -> None:
    """Into the tables of the checkout, or those of a site."""
    from gpu_ami.files import write_text
    from gpu_ami.recipes.facts import add_changes

    for table, content in found.texts.items():
        if site:
            add_changes(table, found.before[table], content, site)
        else:
            write_text(folder / f"{table}.yml", content)


def apply_rows(
    found: Refreshed, folder: Path, site: Path | None, recipes: Sequence[Path], progress: Progress
) -> list[str]:
    """Writes the rows, and takes them back where recipes or tests of the rules fail with them: what failed."""
    from gpu_ami.recipes import load_facts

    written = site / "facts" if site else folder
    before = {path: path.read_text("utf-8") for path in written.glob("*.yml")}
    _write(found, folder, site)
    try:
        load_facts.cache_clear()
        with progress.stage(f"{len(recipes)} recipes with the new rows"):
            failed = _refused(recipes)
        if not failed:
            failed = run_rule_tests(progress)
    except BaseException:
        _restore(written, before)
        raise
    if failed:
        _restore(written, before)
    return failed


def _restore(written: Path, before: Mapping[Path, str]) -> None:
    from gpu_ami.files import write_text
    from gpu_ami.recipes import load_facts

    for path in written.glob("*.yml"):
        if path not in before:
            path.unlink()
        elif path.read_text("utf-8") != before[path]:
            write_text(path, before[path])
    load_facts.cache_clear()


def _refused(recipes: Sequence[Path]) -> list[str]:
    """Recipes that have no plan: they had one before."""
    from gpu_ami.cloud import Place
    from gpu_ami.errors import GpuAmiError
    from gpu_ami.plan import make_plan

    failed = []
    for recipe in recipes:
        try:
            make_plan(recipe, Place(name="aws", region="us-east-1"))
        except GpuAmiError as error:
            failed.append(f"{recipe.stem}: {error.message}: {'; '.join(error.details)}")
    return failed


def run_rule_tests(progress: Progress) -> list[str]:
    """The tests of the rules that fail; none where gpu-ami is installed without them."""
    from gpu_ami import process
    from gpu_ami.files import data_root

    root = data_root()
    tests = [name for name in _TESTS if (root / name).exists()]
    if not tests:
        progress.note("the tests of the rules are in a checkout of gpu-ami alone: they were not run")
        return []
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--no-header", "-rf", *tests]
    with progress.stage("tests of the rules"):
        done = process.run(command, timeout=_TESTS_SECONDS, cwd=root, check=False)
    lines = [line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))]
    return [] if done.returncode == 0 else lines or [f"pytest ended with {done.returncode}: {done.stdout[-400:]}"]
