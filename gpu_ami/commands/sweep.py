"""`gpu-ami sweep`: remove what dead runs left."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options

if TYPE_CHECKING:
    from gpu_ami.progress import Progress

_EPILOG = """\
Leftovers are resources with the tag gpu-ami:run whose expiry has passed or whose run on this machine has ended, and the
log groups of such a run's proof. Complete images stay until their own expiry (image_expires). Processes, temporary keys
and records of interrupted runs are removed with the leftovers of their place. Without --where it removes those of the
local region, and of runs on a --host or --root.

examples:
  gpu-ami sweep                       this machine and the local region
  gpu-ami sweep --where aws.yml -n    what would be removed in that AWS region
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("sweep", help="remove leftovers of interrupted runs", epilog=_EPILOG)
    options.add_where(parser, "a place on AWS (YAML), or `local` (default: the local region)")
    parser.add_argument("-n", "--dry-run", action="store_true", help="print what would be removed")
    again = "the same command goes on with the rest"
    parser.set_defaults(execute=execute, again=again, interrupted="interrupted; what was removed by then is gone")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from dataclasses import asdict

    from gpu_ami.cloud import Cloud, load_place, runs, sweep
    from gpu_ami.files import home_dir
    from gpu_ami.region import provider

    home = home_dir()
    swept: list[sweep.Swept] = []
    place = load_place(args.where) if args.where else None
    names, file = ([place.name], place.file) if place else ([provider().name, *runs.WITHOUT_PLACE], None)
    for name in names:
        ended = sweep.end_processes(home, name, progress, file=file, dry_run=args.dry_run)
        swept += [one for one in ended if one not in swept]  # a dry run finds those without a record each time
    if place:
        swept += sweep.sweep_cloud(Cloud(place, progress.note), home, progress, dry_run=args.dry_run)
    elif running := provider().running():
        swept += sweep.sweep_cloud(Cloud(running, progress.note), home, progress, dry_run=args.dry_run)
    elif not args.dry_run:
        for leftover_id in provider().clean_leftovers():
            swept.append(sweep.Swept("local region", leftover_id, "", "its daemon has ended", "removed"))
    failed = [leftover for leftover in swept if leftover.error]
    for name in [] if failed else names:
        swept += sweep.forget_dead_runs(home, name, progress, file=file, dry_run=args.dry_run)
    lines = [f"{leftover.kind} {leftover.id}: {leftover.text} ({leftover.reason})" for leftover in swept]
    data = [asdict(leftover) for leftover in swept]
    return Outcome("\n".join(lines or ["nothing to sweep"]), data, 4 if failed else 0)
