"""`gpu-ami validate`: checks an AMI on each instance type, a running host, or the files of an image."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import out_lock
from gpu_ami.commands import Outcome, check_options, options
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from securesystemslib.signer import Signer

    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress
    from gpu_ami.region import SessionRequest
    from gpu_ami.report import Report
    from gpu_ami.validate import ProofOptions, Target

_EPILOG = """\
Writes OUT/report.json, OUT/junit.xml and OUT/evidence/. report.json exists from the start of the proof; if the run
is interrupted, it has the completed checks and is marked as incomplete.

exit codes: 0 all required checks passed, on the selected instance types · 1 a check failed or is missing
            2 usage · 4 cloud, network or machine · 5 no capacity
            7 nothing failed, but checks or restarts were left out on purpose (-k, --restarts, no --provoke-xid)

examples:
  gpu-ami validate                                            the AMI of OUT/build.json on every instance type
  gpu-ami validate out/debian12-gpu --ami ami-0123456789abcdef0 --where aws.yml
  gpu-ami validate out/debian12-gpu --where aws.yml --dry-run    machines, restarts, cost; launches nothing
  gpu-ami validate --host admin@10.0.0.7 -i key.pem           any running machine; nothing is launched
  gpu-ami validate --host ssh://admin@10.0.0.7 --checks my_checks/
  gpu-ami validate --host ssh://admin@10.0.0.7 --reboot       reboots it and checks again
  sudo gpu-ami validate out/debian12-gpu --root /mnt          the files of an image: a mounted tree, or a raw disk
  sudo gpu-ami validate --root /mnt                           as they are found, without a plan
"""
_AGAIN = "run the command again: it repeats all checks; report.json has those that had completed"


# What does not go together: whether it was asked for, the message, and what to do instead.
_EXCLUSIONS: tuple[tuple[Callable[[argparse.Namespace], bool], str, str], ...] = (
    (
        lambda args: bool(args.root and (args.reboot or args.restarts is not None)),
        "--root has nothing to restart: it boots no machine",
        "",
    ),
    (
        lambda args: bool(args.host and args.restarts is not None),
        "--restarts is for machines that gpu-ami launches",
        "use --reboot with --host",
    ),
    (
        lambda args: bool(args.deadline and (args.root or (args.host and not args.reboot))),
        "--deadline is for machines that gpu-ami launches or reboots (--host with --reboot)",
        "",
    ),
    (
        lambda args: bool(args.reboot and not args.host),
        "--reboot is for --host",
        "machines that gpu-ami launches are restarted unless --restarts none",
    ),
    *(
        (
            lambda args, name=name, unset=unset: bool(args.host or args.root) and getattr(args, name) != unset,
            f"--{name.replace('_', '-')} is for machines that gpu-ami launches",
            "",
        )
        for name, unset in {"max_cost": None, "nodes": 1, "join": None, "log_groups": None, "dry_run": False}.items()
    ),
)


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("validate", help="check an AMI, a running host or image files", epilog=_EPILOG)
    options.add_out(parser)
    parser.add_argument(
        "--ami", type=options.ami_id, metavar="AMI", help="check this AMI instead of the one in build.json"
    )
    parser.add_argument("--host", metavar="URL", help="check this running machine: [ssh://]user@address[:port]")
    parser.add_argument(
        "--root", type=Path, metavar="PATH", help="check the files of an image: a mounted tree or a raw disk"
    )
    options.add_identity(parser)
    options.add_known_hosts(parser)
    parser.add_argument(
        "--instance-id", default="", metavar="ID", help="with --host: its instance id, for the checks that call AWS"
    )
    parser.add_argument(
        "--reboot",
        action="store_true",
        help="with --host: reboot it and repeat the checks that must hold after a restart",
    )
    options.add_restarts(parser)
    options.add_where(parser)
    options.add_agent_package(parser)
    options.add_instance_types(parser)
    options.add_nodes(parser)
    options.add_join(parser)
    options.add_max_cost(parser)
    options.add_log_groups(parser)
    options.add_deadlines(parser)
    options.add_checks(parser)
    options.add_dry_run(parser)
    options.add_sign(parser, "report, for certify or merge in another job,")
    parser.set_defaults(execute=execute, again=_AGAIN)


@dataclass(frozen=True)
class Launched:
    """An AMI that is booted in a place. ami: None: that of the build in OUT."""

    plan: Plan
    ami: str | None
    session: SessionRequest
    is_dry_run: bool = False


@dataclass(frozen=True)
class Running:
    """A machine that runs. plan: None: none is known. where: its place; None: this machine's region, if it is up."""

    plan: Plan | None
    target: Target
    where: Path | None


@dataclass(frozen=True)
class Files:
    """The files of an image: a mounted tree or a raw disk. plan: None: it is made of what is in them."""

    plan: Plan | None
    root: Path


@dataclass(frozen=True)
class Request:
    """What `validate` is asked for. signers: of the report."""

    subject: Launched | Running | Files
    out: Path
    proof: ProofOptions
    signers: Sequence[Signer] = ()


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import pipeline
    from gpu_ami.report import writer

    request = _request(args, progress)
    subject = request.subject
    if isinstance(subject, Files):
        report = _validate_files(subject, request, progress)
    elif isinstance(subject, Running):
        report = _validate_host(subject, request, progress)
    elif subject.is_dry_run:
        with pipeline.open_session(subject.session, progress) as session:
            decided = pipeline.decide(subject.plan, request.proof, session)
        return Outcome(decided.text(), decided.to_json())
    else:
        report = _validate_ami(subject, request, progress)
    pipeline.sign_report(report, request.out, request.signers)
    return Outcome(writer.summary_text(report, None, request.out), report.to_json(), report.exit_code)


def _request(args: argparse.Namespace, progress: Progress) -> Request:
    """What the arguments ask for. UsageError: a mistake in them or in the files that they name; nothing is started."""
    if sum(map(bool, (args.host, args.ami, args.root))) > 1:
        raise UsageError(
            "--ami, --host and --root exclude each other",
            hint="--ami boots machines, --host checks a running one, --root checks files",
        )
    for excludes, message, hint in _EXCLUSIONS:
        if excludes(args):
            raise UsageError(message, hint=hint)
    if args.root:
        return _files_request(args)
    return _host_request(args) if args.host else _ami_request(args, progress)


def _ami_request(args: argparse.Namespace, progress: Progress) -> Request:
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.region import SessionRequest

    options.check_nodes(args)
    deadlines = options.deadlines(args)
    proof = options.proof_options(args)
    # A dry run signs nothing: a key that is another job's need not be here.
    signers = [] if args.dry_run else options.signers(args)
    out = options.existing_plan(args.out)
    plan = Plan.load(out / PLAN_FILE)
    proof = check_options.Selection.of_image(args).narrow(proof, out, plan)
    agent = options.agent_package(args, progress)
    session = SessionRequest(args.where, agent, log_groups=args.log_groups, deadlines=deadlines)
    return Request(Launched(plan, args.ami, session, args.dry_run), out, proof, signers)


def _host_request(args: argparse.Namespace) -> Request:
    from gpu_ami.validate import A_MACHINE, REBOOT, ProofOptions, Target, hosts

    deadlines = options.deadlines(args)
    if deadlines.keys() - {"boot_seconds"}:
        raise UsageError("--deadline with --host: expected boot=SECONDS", hint="--deadline boot=1500")
    signers = options.signers(args)
    plan = _plan_in(args.out)
    url = hosts.host_url(args.host)
    options.check_identity(args)
    proof = ProofOptions(
        checks=args.checks,
        validator_options=check_options.validator_options(args),
        restarts=(REBOOT,) if args.reboot else (),
        boot_seconds=deadlines.get("boot_seconds"),
    )
    instance_type = args.instance_type[0] if args.instance_type else ""
    target = Target(url, instance_type, args.instance_id, args.identity, args.known_hosts)
    out = args.out or Path("out") / "host"
    check_options.Selection(args.select, args.checks, [A_MACHINE]).require_some(out, plan)
    return Request(Running(plan, target, args.where), out, proof, signers)


def _files_request(args: argparse.Namespace) -> Request:
    from gpu_ami.validate import IMAGE_FILES_ALONE, ProofOptions, host_proof

    signers = options.signers(args)
    plan = _plan_in(args.out)
    reason = host_proof.unusable(args.root)
    if reason:
        raise UsageError(f"--root {reason}")
    proof = ProofOptions(checks=args.checks, validator_options=check_options.validator_options(args))
    out = args.out or Path("out") / "files"
    check_options.Selection(args.select, args.checks, [IMAGE_FILES_ALONE]).require_some(out, plan)
    return Request(Files(plan, args.root), out, proof, signers)


def _plan_in(out: Path | None) -> Plan | None:
    """The plan in OUT; None where no OUT was given. UsageError: there is none in it."""
    from gpu_ami.plan import PLAN_FILE, Plan

    if out and not (out / PLAN_FILE).exists():
        raise UsageError(
            f"{out}: no {PLAN_FILE} there",
            hint="`gpu-ami plan RECIPE -o OUT` writes it; without OUT, no plan is used",
        )
    return Plan.load(out / PLAN_FILE) if out else None


def _validate_ami(launched: Launched, request: Request, progress: Progress) -> Report:
    from gpu_ami import pipeline
    from gpu_ami.build import image

    plan, out = launched.plan, request.out
    opened = pipeline.open_session(launched.session, progress)
    out_lock.hold(out)
    ami = launched.ami or image.load(out).ami
    with opened as session:
        if launched.ami:
            options.require_image(session.cloud, ami, plan.document.get("architecture", ""))
        decided = pipeline.decide(plan, request.proof, session)
        return pipeline.validate_stage(plan, ami, out, session, decided)


def _validate_host(running: Running, request: Request, progress: Progress) -> Report:
    from gpu_ami.cloud import runs
    from gpu_ami.files import home_dir
    from gpu_ami.plan import PLAN_FILE
    from gpu_ami.region import running_place
    from gpu_ami.validate import Proof, host_proof

    plan, out = running.plan, request.out
    place = running_place(running.where)
    out_lock.hold(out)
    name, where = (place.name, place.file) if place else (runs.HOST, None)
    with runs.begin(home_dir(), name, place_file=where) as run:
        document, file = (plan.document, out / PLAN_FILE) if plan else (None, None)
        proof = Proof(document, file, place, out, progress, request.proof)
        return host_proof.prove_host(proof, run, running.target)


def _observed_plan(root: Path, out: Path, progress: Progress) -> Plan:
    """Of files for which no plan was given: what is in them. They are judged as they are found."""
    from gpu_ami import observe as observing
    from gpu_ami.commands import observe
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.recipes import load_facts

    with progress.stage(f"read the files of {root}"):
        observation = observing.read_files(root)
    types = observing.instance_types(observation, load_facts())
    observe.write(observation, out, types, observe.image_name(root.resolve().name))
    return Plan.load(out / PLAN_FILE)


def _validate_files(files: Files, request: Request, progress: Progress) -> Report:
    from gpu_ami.cloud import runs
    from gpu_ami.files import home_dir
    from gpu_ami.plan import PLAN_FILE
    from gpu_ami.validate import Proof, host_proof

    out = request.out
    out_lock.hold(out)
    plan = files.plan or _observed_plan(files.root, out, progress)
    proof = Proof(plan.document, out / PLAN_FILE, None, out, progress, request.proof)
    with runs.begin(home_dir(), runs.FILES) as run:
        return host_proof.prove_files(proof, run, functools.partial(host_proof.check, proof, files.root))
