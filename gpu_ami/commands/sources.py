"""`gpu-ami sources`: is everything that a plan names at its source, signed by the planned key?"""

from __future__ import annotations

import argparse
import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.commands import Outcome, options

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress
    from gpu_ami.sources import ResolveAmi

_DEADLINE_S = 120.0
_EPILOG = """\
Checks package repositories (index, signature, digests, dependencies), installers (size, signature file), git
repositories (tag and commit) and signing keys of a plan concurrently. It needs no root, and launches and changes
nothing. With --where, the source AMI is looked up. HTTP_PROXY, HTTPS_PROXY and NO_PROXY are used. docs/sources.md

examples:
  gpu-ami sources debian12-gpu                        a recipe, at the vendors' own addresses
  gpu-ami sources out/debian12-gpu                    a plan
  gpu-ami sources al2023-compute --where aws.yml      also its source AMI; at the place's mirror if it has one
  gpu-ami sources al2023-compute --mirror https://mirror.example:8443
  gpu-ami sources debian12-gpu --local                at the local region's mirror
  sudo gpu-ami sources debian12-distribution --build  build the driver's module on the base image's kernel

exit codes: 0 everything is available · 2 something is missing or not as planned · 4 a source cannot be reached
"""


def register(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "sources", help="check that everything in a plan is available at its source", epilog=_EPILOG,
        description="Checks every source of a plan.",
    )  # fmt: skip
    text = "recipes, or folders with plan.json (default: the one under out/)"
    parser.add_argument("plans", type=Path, nargs="*", metavar="PLAN|RECIPE", help=text)
    where = parser.add_mutually_exclusive_group()
    text = "place on AWS (YAML): look up the source AMI, and use the mirror (default: the vendors' addresses)"
    options.add_where(where, text)
    where.add_argument(
        "--local", action="store_true", help="check at the local region's mirror; the region need not be running"
    )
    text = "mirror that serves https://HOST/PATH as URL/HOST/PATH with the vendors' signatures"
    where.add_argument("--mirror", metavar="URL", help=text)
    parser.add_argument("--no-cache", action="store_true", help="download every index again")
    text = f"seconds after which a source counts as unreachable (default: {_DEADLINE_S:.0f})"
    parser.add_argument("--deadline", type=options.seconds, default=_DEADLINE_S, metavar="SECONDS", help=text)
    text = (
        "build the driver's kernel module on the base image's kernel, in a sandbox of the local region, and print the "
        "row for variables/facts/distribution_drivers.yml (root; drivers of the system's own archive)"
    )
    parser.add_argument("--build", action="store_true", help=text)
    parser.set_defaults(execute=execute, again="the same command uses the answers that arrived by then")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.sources import Cache, Client, as_table, survey

    if args.build:
        return _build(args, progress)
    place = _place(args)
    plans = [_plan(path, place) for path in args.plans or [options.existing_plan(None)]]
    cache = None if args.no_cache else Cache()
    if cache:
        cache.forget_old()
    surveys = []
    with _rewritten(plans, args, progress) as rewrite:
        client = Client(cache, rewrite=rewrite)
        for plan in plans:
            with progress.stage(f"sources of {plan.image}"):
                resolve_ami = _source_ami(plan, place) if args.where else None
                asked = survey(
                    plan.document, client, resolve_ami=resolve_ami, deadline_s=args.deadline,
                    with_archive=not args.mirror and place.mirror is None,
                )  # fmt: skip
                surveys.append(asked)
    codes = [survey.exit_code for survey in surveys]
    text = "\n\n".join(as_table(survey) for survey in surveys)
    return Outcome(text, [survey.to_json() for survey in surveys], min((code for code in codes if code), default=0))


def _build(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.errors import UsageError
    from gpu_ami.region import provider

    if args.where or args.mirror:
        raise UsageError("--build runs in the local region: leave out --where and --mirror")
    local = provider()
    plans = [_plan(path, local.place()) for path in args.plans or [options.existing_plan(None)]]
    for plan in plans:
        local.require_module(plan)
    rows = [local.build_module(plan, progress) for plan in plans]
    lines = [
        'rows of `builds` in variables/facts/distribution_drivers.yml, for rule "the module builds on the kernel":'
    ]
    for row in rows:
        first, *rest = (f"{key}: {json.dumps(value)}" for key, value in row.items())
        lines += [f"      - {first}", *(f"        {line}" for line in rest)]
    return Outcome("\n".join(lines), rows, 0 if all(row["builds"] for row in rows) else 2)


def _place(args: argparse.Namespace) -> Place:
    """Where the plan of a recipe is for; without an option AWS itself, so that its addresses are the vendors'."""
    from gpu_ami.cloud import Place, load_place

    if args.where:
        return load_place(args.where)
    if args.local:
        from gpu_ami.region import provider

        return provider().place()
    return Place(name="aws", region="us-east-1")


def _plan(path: Path, place: Place) -> Plan:
    from gpu_ami.plan import PLAN_FILE, Plan, make_plan
    from gpu_ami.recipes import find_recipe

    if path.name == PLAN_FILE or (path / PLAN_FILE).is_file():
        return Plan.load(path if path.name == PLAN_FILE else path / PLAN_FILE)
    return make_plan(find_recipe(path), place)


def _source_ami(plan: Plan, place: Place) -> ResolveAmi:
    from gpu_ami.cloud import Cloud
    from gpu_ami.plan import resolve_source_ami

    return lambda: resolve_source_ami(Cloud(place), plan.document)


@contextlib.contextmanager
def _rewritten(plans: list[Plan], args: argparse.Namespace, progress: Progress) -> Iterator[Callable[[str], str]]:
    """Where addresses are found: at a mirror that is named, or at the local region's, served here for the time."""
    if args.mirror:
        from gpu_ami.sources import mirrored

        yield mirrored(args.mirror)
        return
    from gpu_ami.region import provider

    with provider().mirrored([plan.document for plan in plans], progress) as rewrite:
        yield rewrite
