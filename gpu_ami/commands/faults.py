"""`gpu-ami faults`: see every check turn red once."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, stages

if TYPE_CHECKING:
    from gpu_ami.faults import Trial
    from gpu_ami.log import Progress

_EPILOG = """\
Boots the good image once, plants each fault of validator/faults/*.yml in turn, checks, undoes it, reports: detected,
missed, wrong check, collateral (a check is red without cause). Exit 0: all detected. Writes OUT/faults.json.

  gpu-ami faults                                   all faults, on the first instance type of the plan
  gpu-ami faults --only parser-stopped --only one-gpu-missing
  gpu-ami faults --list
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "faults", help="plant faults in a good image: does the right check see each?", epilog=_EPILOG
    )
    parser.add_argument(
        "out", type=Path, nargs="?", metavar="OUT", help="folder with build.json (default: the one under out/)"
    )
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this fault (repeatable)")
    parser.add_argument("--list", action="store_true", help="only list the faults")
    stages.add_where(parser)
    stages.add_instance_types(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    import validator
    from gpu_ami import faults

    chosen = faults.load(Path(validator.__file__).parent / "faults", args.only)
    if args.list:
        lines = [f"{one.id:34} {one.caught_by:62} {one.breaks}" for one in chosen]
        return Outcome(
            "\n".join(lines), [{"id": one.id, "breaks": one.breaks, "caught_by": one.caught_by} for one in chosen]
        )
    return _run(args, progress, chosen)


def _run(args: argparse.Namespace, progress: Progress, chosen: list[Any]) -> Outcome:
    import json
    import threading

    from gpu_ami import build, faults, line, machine, proof
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.report import write_text

    out = stages.existing_plan(args.out)
    plan, ami = Plan.load(out / PLAN_FILE), build.load(out).ami
    kind = proof.choose_types(plan.document, args.instance_type)[0]
    with line.standing(args.where, progress) as at:
        wanted = proof.Proof(plan.document, out / PLAN_FILE, at.place, out / "faults", progress)
        tags = at.run.tags(recipe=plan.image, plan_digest=plan.digest)
        with (
            machine.temporary_key(at.cloud, at.run, tags) as key,
            machine.launched(at.cloud, ami, kind, key, at.run, tags) as instance,
        ):
            with progress.stage(f"boot {kind}"):
                boot = machine.Boot(at.cloud, at.run, plan["os"]["ssh_user"], progress, threading.Event())
                booted = boot.follow(instance, kind)
            target = proof.Target(booted.url, kind, instance, booted.key_file, booted.known_hosts)
            trials = list(faults.try_all(wanted, target, chosen))
    data = [
        {
            "id": one.fault.id,
            "outcome": one.outcome,
            "caught_by": one.fault.caught_by,
            "red": one.red,
            "message": one.message,
        }
        for one in trials
    ]
    write_text(out / "faults.json", json.dumps(data, ensure_ascii=False, indent=1) + "\n")
    return Outcome(summary(trials), data, 0 if all(one.outcome == "detected" for one in trials) else 1)


def summary(trials: list[Trial]) -> str:
    """A line a fault, then how many of them had each outcome."""
    lines = [f"{one.outcome:12} {one.fault.id:34} {', '.join(one.red)}" for one in trials]
    outcomes = [one.outcome for one in trials]
    counts = [
        f"{outcomes.count(name)} {name}" for name in ("detected", "missed", "wrong check", "collateral", "not planted")
    ]
    return "\n".join([*lines, "", f"{len(trials)} faults: {', '.join(counts)}"])
