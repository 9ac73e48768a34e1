"""`gpu-ami facts`: what the tables know, with sources; `refresh`: rows from the vendors' own metadata."""

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


_EPILOG = """\
examples:
  gpu-ami facts p5.48xlarge             an instance type: its GPUs, EFA, and compatible drivers and CUDA
  gpu-ami facts p5                      a family
  gpu-ami facts --driver 580            a driver branch or release: modules, end of support, CUDA, GPUs
  gpu-ami facts --cuda 13.0             a CUDA toolkit: drivers, cuDNN, NCCL
  gpu-ami facts --efa 1.49.0            what is in an EFA installer
  gpu-ami facts --os al2023             an operating system
  gpu-ami facts --stale 90              rows that were read more than 90 days ago, the oldest first
  gpu-ami facts --add nccl 2.11.4 --set source=https://github.com/NVIDIA/nccl/releases/tag/v2.11.4-1
                                        a row for a release that is not in the tables, in ./site/facts/ (--site DIR)
  gpu-ami facts refresh                 new rows from the vendors' repositories, as a diff to review
  gpu-ami facts refresh al2023-compute --write      … of the repositories of one recipe, written into the tables
  gpu-ami facts refresh --write --site site         … of all recipes, written into the tables of a site
  gpu-ami facts refresh --apply         … written, and kept if all recipes are planned and the tests of the rules pass

The tables are variables/facts/*.yml; each row has its source and date, and a mark if it is not verified.
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "facts", help="look up instance types, drivers, CUDA, EFA", description="Shows rows of the fact tables.",
        epilog=_EPILOG,
    )  # fmt: skip
    parser.add_argument("instance_type", nargs="?", metavar="TYPE", help="an instance type or family")
    asked = parser.add_mutually_exclusive_group()
    for name, text in (
        ("driver", "a driver branch or release"),
        ("cuda", "a CUDA toolkit"),
        ("efa", "an EFA installer"),
        ("os", "an operating system"),
    ):
        asked.add_argument(f"--{name}", metavar="VERSION" if name != "os" else "NAME", help=text)
    asked.add_argument(
        "--stale", type=int, nargs="?", const=90, metavar="DAYS", help="rows of that age or older (default: 90)"
    )
    text = "add a row for a release to the tables of a site, for your own recipes; it is marked unverified"
    asked.add_argument("--add", nargs=2, metavar=("COMPONENT", "VERSION"), help=text)
    text = "with --add: a value of the row, in YAML (repeatable); others are those of the nearest release"
    parser.add_argument("--set", dest="values", action="append", default=[], metavar="KEY=VALUE", help=text)
    parser.add_argument(
        "--site", type=Path, metavar="DIR",
        help="the site's folder: --add writes into it (default: ./site), and so does refresh --write",
    )  # fmt: skip
    text = "with refresh: recipes whose repositories are read (default: all)"
    parser.add_argument("recipes", type=Path, nargs="*", metavar="RECIPE", help=text)
    writing = parser.add_mutually_exclusive_group()
    writing.add_argument("--write", action="store_true", help="with refresh: write the rows into the tables")
    text = "with refresh: write the rows, plan all recipes and run the tests of the rules; failures undo it"
    writing.add_argument("--apply", action="store_true", help=text)
    text = "with refresh: mirror that serves https://HOST/PATH as URL/HOST/PATH"
    parser.add_argument("--mirror", metavar="URL", help=text)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.errors import UsageError
    from gpu_ami.recipes import load_facts
    from gpu_ami.recipes.facts import fact_queries

    if args.instance_type == "refresh":
        return refresh_facts(args, progress)
    if args.recipes or args.write or args.apply or args.mirror:
        raise UsageError("RECIPE, --write, --apply and --mirror belong to `gpu-ami facts refresh`")
    if args.add:
        return _add(args)
    facts = load_facts()
    if args.stale is not None and not args.instance_type:
        return _stale(fact_queries.stale(facts, args.stale, datetime.date.today()), args.stale)
    asked = {
        fact_queries.about_instance_type: args.instance_type,
        fact_queries.about_driver: args.driver,
        fact_queries.about_cuda: args.cuda,
        fact_queries.about_efa: args.efa,
        fact_queries.about_os: args.os,
    }
    given = [(answer, name) for answer, name in asked.items() if name]
    if len(given) != 1:
        raise UsageError("ask for one thing", hint="gpu-ami facts p5.48xlarge, or gpu-ami facts --driver 580")
    answer, name = given[0]
    found = answer(facts, name)
    return Outcome(fact_queries.as_text(found), found)


def _add(args: argparse.Namespace) -> Outcome:
    from gpu_ami.errors import UsageError
    from gpu_ami.files import parse_yaml
    from gpu_ami.recipes import load_facts
    from gpu_ami.recipes.facts import add_row, released

    component, version = args.add
    pairs = [word.partition("=") for word in args.values]
    if wrong := [key for key, sign, _ in pairs if not sign]:
        raise UsageError(f"--set {wrong[0]}: expected KEY=VALUE", hint="--set source=https://…")
    values = {key: parse_yaml(value, f"--set {key}") for key, _, value in pairs}
    folder = args.site or Path("site")
    site = folder / "facts"
    facts = load_facts(site=site) if site.is_dir() else load_facts()
    path = add_row(facts, component, version, folder, values, today=datetime.date.today().isoformat())
    known = released(facts, component, version) or "the lists of releases do not have it: check its source"
    text = f"{path}: {component} {version} added, unverified; {known}. Review what it takes from its neighbour"
    return Outcome(text, {"table": str(path), "component": component, "version": version})


def _stale(rows: list[dict[str, object]], days: int) -> Outcome:
    lines = [
        f"{row['days']:>5}  {row['date']}  {row['row']}{'' if row['verified'] else '  (not verified)'}" for row in rows
    ]
    text = [f"{len(rows)} rows are older than {days} days", *lines]
    return Outcome("\n".join(text), {"older_than_days": days, "rows": rows})


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
        _write_rows(found, folder, args.site)
    is_written = bool((args.write or args.apply) and found.proposals and not failed)
    return _outcome_of_refresh(found, is_written, failed)


def _outcome_of_refresh(found: Refreshed, is_written: bool, failed: Sequence[str]) -> Outcome:
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


def _write_rows(found: Refreshed, folder: Path, site: Path | None) -> None:
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
    _write_rows(found, folder, site)
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
