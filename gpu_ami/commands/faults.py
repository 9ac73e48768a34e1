"""`gpu-ami faults`: inject every seeded fault and see that the named check detects it."""

from __future__ import annotations

import argparse
import contextlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, check_options
from gpu_ami.commands import options as stages

FAULTS_FILE = "faults.json"
MACHINES = 4  # if faults cannot be reverted on so many machines, the cause is the image or the region

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from contextlib import AbstractContextManager

    from gpu_ami.faults import CleanProof, Fault, FaultSession, Record
    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress
    from gpu_ami.region import Session
    from gpu_ami.validate import Proof

_EPILOG = """\
Boots the image once and runs a clean proof, then injects each fault of gpu_ami/faults/definitions/*.yml in turn, runs
the checks, reverts it, and prints the outcome: detected, missed, wrong check, collateral (another check failed without
cause), not injected, not reverted, or out of scope (this image or instance type cannot have the fault). A clean proof
at the end shows that the machine is as it was before; if it is not, a new machine is booted for the remaining faults.
Exit 0: every fault was detected, and no clean proof gave a false alarm.

OUT/faults.json keeps the last trial of each fault and every clean proof, for all runs of the same image. Ctrl-C
terminates the machine with the fault in it; --resume continues on a new one.

examples:
  gpu-ami faults                                   all faults, on the first instance type of the plan
  gpu-ami faults --only parser-stopped --only one-gpu-missing
  gpu-ami faults --resume                          faults that have not been detected on this image yet
  gpu-ami faults --after metric-removed            faults that come after that one
  gpu-ami faults --together                        several distinguishable faults at a time: a third of the time
  gpu-ami faults --proofs 20                       twenty clean proofs first, to find false alarms
  gpu-ami faults out/observed                      an AMI that others built, after gpu-ami observe --ami or prove --ami
  gpu-ami faults --list
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "faults", help="inject faults into an image and test that the right check detects each", epilog=_EPILOG
    )
    stages.add_out(parser, "build.json")
    parser.add_argument("--only", action="append", default=[], metavar="ID", help="only this fault (repeatable)")
    parser.add_argument("--after", default="", metavar="ID", help="only faults that come after this one")
    parser.add_argument(
        "--resume", action="store_true", help="only faults that are not marked as detected in faults.json"
    )
    text = "clean proofs in a row before the first fault [%(default)s]"
    parser.add_argument("--proofs", type=int, default=1, metavar="N", help=text)
    text = "inject several distinguishable faults at a time; an unexpected result is tried again alone"
    parser.add_argument("--together", action="store_true", help=text)
    parser.add_argument("--list", action="store_true", help="only list the faults")
    text = (
        "YAML list of waived checks, as for `gpu-ami prove`: their failures do not count as collateral (docs/checks.md)"
    )
    parser.add_argument("--waivers", type=Path, metavar="FILE", help=text)
    stages.add_where(parser)
    stages.add_instance_types(parser)
    parser.set_defaults(execute=execute, again="the same command with --resume continues with the remaining faults")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.faults import catalogue, trials

    chosen = catalogue.load(trials.folder(), args.only, args.after, _site_faults(args))
    if args.list:
        lines = [f"{fault.id:36} {fault.caught_by:66} {fault.description}" for fault in chosen]
        rows = [{"id": fault.id, "description": fault.description, "caught_by": fault.caught_by} for fault in chosen]
        return Outcome("\n".join(lines), rows)
    return _run(args, progress, chosen)


def _site_faults(args: argparse.Namespace) -> list[Path]:
    """Files of faults in site/ beside the plan; none where no plan was made yet (--list)."""
    from gpu_ami.plan import PLAN_FILE, Plan, site_files

    folder = args.out or next(iter(sorted(Path("out").glob(f"*/{PLAN_FILE}"))), Path()).parent
    if not (folder / PLAN_FILE).is_file():
        return []
    return site_files(folder, "faults", "{}.yml", Plan.load(folder / PLAN_FILE).document["roles"])


def _run(args: argparse.Namespace, progress: Progress, chosen: list[Fault]) -> Outcome:
    from gpu_ami import pipeline
    from gpu_ami.build import image
    from gpu_ami.errors import UsageError
    from gpu_ami.faults import catalogue, trials
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.region import SessionRequest
    from gpu_ami.validate import BUSY, Proof, ProofOptions, image_proof
    from validator.plan import OBSERVED

    if args.proofs < 1:
        raise UsageError(f"--proofs: expected at least 1, got {args.proofs}")
    check_options.require_waivers(args.waivers)
    out = stages.existing_plan(args.out)
    plan = Plan.load(out / PLAN_FILE)
    is_as_found = plan.document.get("origin") == OBSERVED
    ami = _observed_ami(plan) if is_as_found else image.load(out).ami
    kind = image_proof.choose_types(plan.document, args.instance_type)[0]
    record = catalogue.Record.load(out / FAULTS_FILE, ami, kind)
    scope = chosen if args.only else catalogue.load(trials.folder(), more=_site_faults(args))
    if is_as_found:
        chosen, scope = (catalogue.judged_as_found(some, plan.document["roles"]) for some in (chosen, scope))
    if args.resume:
        chosen = [fault for fault in chosen if not record.is_seen(fault)]
    if not chosen and args.proofs == 1:
        return Outcome(record.summary(scope), record.to_json(), 0)
    with pipeline.open_session(SessionRequest(args.where), progress) as session:
        if not is_as_found:
            session.region.prepare(plan.document)  # packages that some faults install
        options = [BUSY, *check_options.golden_folders()]  # a fault may slow the machine down
        options += [f"--waivers={args.waivers}"] if args.waivers else []
        asked = ProofOptions(validator_options=options)
        planned_proof = Proof(plan.document, out / PLAN_FILE, session.place, out / "faults", progress, asked)

        def fresh() -> AbstractContextManager[FaultSession]:
            return _booted(session, plan, ami, kind, planned_proof)

        try_on_machines(fresh, chosen, record, out / FAULTS_FILE, args)
    return Outcome(record.summary(scope), record.to_json(), 0 if record.is_good(scope) else 1)


def _observed_ami(plan: Plan) -> str:
    """The AMI that others built, and that was observed. UsageError: a host or files were."""
    from gpu_ami.errors import UsageError

    if not plan.image.startswith("ami-"):
        hint = "faults are injected into a machine of an AMI: gpu-ami observe --ami AMI -o OUT"
        raise UsageError(f"{plan.image}: observed as a host or as files, not as an AMI", hint=hint)
    return plan.image


@contextlib.contextmanager
def _booted(session: Session, plan: Plan, ami: str, kind: str, planned_proof: Proof) -> Iterator[FaultSession]:
    """A new machine of the image; it is terminated after the block."""
    import threading

    from gpu_ami.cloud import login
    from gpu_ami.faults import trials
    from gpu_ami.validate import Target, cluster, node_services
    from gpu_ami.validate import proof as proofs
    from gpu_ami.validate.machines import launch, machine

    tags = session.run.tags(recipe=plan.image, plan_digest=plan.digest)
    efa, roles = launch.efa_interfaces(plan.document, kind), plan.document["roles"]
    proven = node_services.Proven(plan.document, ami, session.cloud, session.run, tags)

    def end(remove: Callable[[], None]) -> None:
        login.clean_up(session.run, remove, lambda error: session.progress.note(f"not removed: {error.message}"))

    with (
        login.temporary_key(session.cloud, session.run, tags) as key,
        proofs.own_log_groups(session.cloud, session.run, session.progress),
        cluster.opened(
            proven, "" if cluster.is_supported(plan.document, session.place) else None, end, session.progress
        ) as joining,
        launch.launched(
            session.cloud,
            launch.launch_of(
                session.cloud,
                session.run,
                ami=ami,
                instance_type=kind,
                key=key,
                tags=tags,
                roles=roles,
                cluster=joining.cluster if joining else None,
                efa_interfaces=efa,
            ),
            session.run,
        ) as instance,
        contextlib.ExitStack() as stack,
    ):
        with planned_proof.progress.stage(f"boot {kind}"):
            boot = machine.Boot(
                session.cloud,
                session.run,
                plan.document["os"]["ssh_user"],
                planned_proof.progress,
                threading.Event(),
                units=planned_proof.units(),
            )
            booted = boot.follow(instance, kind)
        target = Target(
            booted.url,
            kind,
            instance,
            booted.key_file,
            booted.known_hosts,
            log_group_suffix=booted.log_group_suffix,
        )
        join = None
        if joining:
            stack.callback(joining.leave, [instance])
            join = joining.describe([booted])
        with trials.FaultSession(planned_proof, target, join) as faults:
            yield faults


def try_on_machines(
    fresh: Callable[[], AbstractContextManager[FaultSession]],
    chosen: Sequence[Fault],
    record: Record,
    path: Path,
    args: argparse.Namespace,
) -> None:
    """Tries all faults; continues on a new machine, with those that were not tried, where one is not restored."""
    from gpu_ami.errors import counted
    from gpu_ami.faults import NotRestoredError

    left, proofs = list(chosen), args.proofs
    for machines_left in range(MACHINES - 1, -1, -1):
        tried: set[str] = set()
        try:
            with fresh() as session:
                _try(session, left, proofs, record, path, tried=tried, together=args.together)
            return
        except NotRestoredError as error:
            left, proofs = [fault for fault in left if fault.id not in tried], 1
            if not (machines_left and left and tried):
                raise
            session.proof.progress.note(f"{error.message}: {'; '.join(error.details)}")
            session.proof.progress.note(f"continuing on a new machine: {counted(len(left), 'fault')} left")


def _try(
    session: FaultSession,
    chosen: Sequence[Fault],
    proofs: int,
    record: Record,
    path: Path,
    *,
    tried: set[str],
    together: bool,
) -> None:
    from gpu_ami.errors import MachineError, counted
    from gpu_ami.files import write_json

    def write() -> None:
        write_json(path, record.to_json())

    def keep(proof: CleanProof) -> None:
        record.proofs.append(proof)
        write()

    for number in range(1, proofs + 1):
        with session.proof.progress.stage(f"clean proof {number} of {proofs}"):
            keep(session.prove(f"{number} of {proofs}, before any fault"))
    red = record.proofs[-1].red
    if red:
        raise MachineError(
            f"{session.target.url}: {counted(len(red), 'check')} failed before any fault was injected",
            details=[f"{name}: {message}" for name, message in red.items()],
            hint="faults need a machine whose checks all pass: gpu-ami validate",
        )
    for trial in session.try_all(chosen, keep, together=together):
        record.add(trial)
        tried.add(trial.id)
        write()
