"""`gpu-ami faults`: see every check turn red once."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, stages

FAULTS_FILE = "faults.json"
_MACHINES = 4  # a boot and a clean proof are minutes; if that many were spoilt, it is the image or the place

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from gpu_ami.fault_trials import Rig
    from gpu_ami.faults import Fault, Record
    from gpu_ami.line import Standing
    from gpu_ami.log import Progress
    from gpu_ami.plan import Plan
    from gpu_ami.proof import Proof

_EPILOG = """\
Boots the good image once and proves it clean, then plants each fault of validator/faults/*.yml in turn, checks, undoes
it, and says what came of it: detected, missed, wrong check, collateral (a check is red without cause), not planted,
not undone; out of scope are faults that this image or instance type cannot have. At the end a clean proof says that
the machine is as good as before; where one says otherwise, a fresh machine is booted for what is left.
Exit 0: every fault was detected, and no clean proof gave a false alarm.

OUT/faults.json keeps the last trial of each fault and every clean proof, from run to run of the same image. Ctrl-C ends
the machine with whatever is planted in it; --resume goes on with a fresh one.

  gpu-ami faults                                   all faults, on the first instance type of the plan
  gpu-ami faults --only parser-stopped --only one-gpu-missing
  gpu-ami faults --resume                          those that have not been detected on this image yet
  gpu-ami faults --after metric-removed            those that come after that one
  gpu-ami faults --together                        a third of the time: several at once that cannot be confused
  gpu-ami faults --proofs 20                       twenty clean proofs in a row first: no false alarm?
  gpu-ami faults --list
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "faults", help="plant faults in a good image: does the right check see each?", epilog=_EPILOG
    )
    stages.add_out(parser, "build.json")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this fault (repeatable)")
    parser.add_argument("--after", default="", metavar="ID", help="only faults that come after this one")
    parser.add_argument("--resume", action="store_true", help="only faults that faults.json does not call detected")
    text = "clean proofs in a row before the first fault [%(default)s]"
    parser.add_argument("--proofs", type=int, default=1, metavar="N", help=text)
    text = "several at once that cannot be confused: quicker; what surprises is tried again alone"
    parser.add_argument("--together", action="store_true", help=text)
    parser.add_argument("--list", action="store_true", help="only list the faults")
    stages.add_where(parser)
    stages.add_instance_types(parser)
    parser.set_defaults(execute=execute, again="the same command with --resume goes on with the faults that are left")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import fault_trials, faults

    chosen = faults.load(fault_trials.folder(), args.only, args.after)
    if args.list:
        lines = [f"{one.id:36} {one.caught_by:66} {one.breaks}" for one in chosen]
        return Outcome(
            "\n".join(lines), [{"id": one.id, "breaks": one.breaks, "caught_by": one.caught_by} for one in chosen]
        )
    return _run(args, progress, chosen)


def _run(args: argparse.Namespace, progress: Progress, chosen: list[Fault]) -> Outcome:
    from gpu_ami import build, fault_trials, faults, line, proof
    from gpu_ami.errors import UsageError
    from gpu_ami.plan import PLAN_FILE, Plan

    if args.proofs < 1:
        raise UsageError(f"--proofs {args.proofs}: a fault proves something only on a machine that was proved clean")
    out = stages.existing_plan(args.out)
    plan, ami = Plan.load(out / PLAN_FILE), build.load(out).ami
    kind = proof.choose_types(plan.document, args.instance_type)[0]
    record = faults.Record.load(out / FAULTS_FILE, ami, kind)
    scope = chosen if args.only else faults.load(fault_trials.folder())
    if args.resume:
        chosen = [one for one in chosen if not record.is_seen(one)]
    if not chosen and args.proofs == 1:
        return Outcome(record.summary(scope), record.to_json(), 0)
    with line.standing(args.where, progress) as at:
        at.stock(plan.document)  # what some faults install
        options = ["--connect-timeout=60"]  # a fault may slow the machine down, and that is not what is judged
        wanted = proof.Proof(plan.document, out / PLAN_FILE, at.place, out / "faults", progress, options=options)

        def fresh() -> AbstractContextManager[Rig]:
            return _booted(at, plan, ami, kind, wanted)

        _try_on_machines(fresh, chosen, record, out / FAULTS_FILE, args)
    return Outcome(record.summary(scope), record.to_json(), 0 if record.is_good(scope) else 1)


@contextlib.contextmanager
def _booted(at: Standing, plan: Plan, ami: str, kind: str, wanted: Proof) -> Iterator[Rig]:
    """A fresh machine of the image; it is ended with the block."""
    import threading

    from gpu_ami import fault_trials, machine, proof

    tags = at.run.tags(recipe=plan.image, plan_digest=plan.digest)
    efa = proof.efa_interfaces(plan.document, kind)
    with (
        machine.temporary_key(at.cloud, at.run, tags) as key,
        machine.launched(at.cloud, ami, kind, key, at.run, tags, efa) as instance,
    ):
        with wanted.progress.stage(f"boot {kind}"):
            boot = machine.Boot(at.cloud, at.run, plan["os"]["ssh_user"], wanted.progress, threading.Event())
            booted = boot.follow(instance, kind)
        target = proof.Target(booted.url, kind, instance, booted.key_file, booted.known_hosts)
        with fault_trials.Rig(wanted, target) as rig:
            yield rig


def _try_on_machines(
    fresh: Callable[[], AbstractContextManager[Rig]],
    chosen: Sequence[Fault],
    record: Record,
    path: Path,
    args: argparse.Namespace,
) -> None:
    """All faults, on another machine where one is spoilt: what has been tried is not tried again, nor forgotten."""
    from gpu_ami.fault_trials import Spoilt

    left, proofs = list(chosen), args.proofs
    for machines_left in range(_MACHINES - 1, -1, -1):
        tried: set[str] = set()
        try:
            with fresh() as rig:
                _try(rig, left, proofs, record, path, tried, together=args.together)
            return
        except Spoilt as spoilt:
            left, proofs = [one for one in left if one.id not in tried], 1
            if not (machines_left and left and tried):
                raise
            rig.proof.progress.note(f"{spoilt.message}: {'; '.join(spoilt.details)}")
            rig.proof.progress.note(f"going on with a fresh machine: {len(left)} faults are left")


def _try(
    rig: Rig, chosen: Sequence[Fault], proofs: int, record: Record, path: Path, tried: set[str], *, together: bool
) -> None:
    import json

    from gpu_ami.errors import MachineError
    from gpu_ami.report import write_text

    def write() -> None:
        write_text(path, json.dumps(record.to_json(), ensure_ascii=False, indent=1) + "\n")

    def keep(proof: Any) -> None:
        record.proofs.append(proof)
        write()

    for number in range(1, proofs + 1):
        with rig.proof.progress.stage(f"clean proof {number} of {proofs}"):
            keep(rig.prove(f"{number} of {proofs}, before any fault"))
    red = record.proofs[-1].red
    if red:
        raise MachineError(
            f"{rig.target.url}: {len(red)} checks are red before any fault is planted",
            details=[f"{name}: {message}" for name, message in red.items()],
            hint="a fault proves something only on a machine whose checks all pass: gpu-ami validate",
        )
    for trial in rig.try_all(chosen, keep, together=together):
        record.add(trial)
        tried.add(trial.id)
        write()
