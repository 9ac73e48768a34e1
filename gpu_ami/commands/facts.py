"""`gpu-ami facts`: what the tables know, with sources."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path

from gpu_ami.commands import Outcome
from gpu_ami.progress import Progress

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
        from gpu_ami.commands.facts_refresh import refresh_facts

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
