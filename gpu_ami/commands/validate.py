"""`gpu-ami validate`: checks an AMI on each instance type, a running host, or the files of an image."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import out_lock
from gpu_ami.commands import Outcome, options
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from contextlib import AbstractContextManager

    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress
    from gpu_ami.region import Session
    from gpu_ami.report import Report
    from gpu_ami.validate import ProofOptions

_EPILOG = """\
Writes OUT/report.json, OUT/junit.xml and OUT/evidence/. report.json exists from the start of the proof; if the run
is interrupted, it has the completed checks and is marked as incomplete.

exit codes: 0 all required checks passed, on the selected instance types · 1 a check failed or is missing
            4 cloud, network or machine · 5 no capacity
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
        for name, unset in {"max_cost": None, "nodes": 1, "join": None, "log_groups": "", "dry_run": False}.items()
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


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import pipeline
    from gpu_ami.report import writer

    if sum(map(bool, (args.host, args.ami, args.root))) > 1:
        raise UsageError(
            "--ami, --host and --root exclude each other",
            hint="--ami boots machines, --host checks a running one, --root checks files",
        )
    for excludes, message, hint in _EXCLUSIONS:
        if excludes(args):
            raise UsageError(message, hint=hint)
    options.check_nodes(args)
    options.restarts(args)  # mistakes in these are reported before anything starts
    deadlines = options.deadlines(args)
    if args.host and deadlines.keys() - {"boot_seconds"}:
        raise UsageError("--deadline with --host: expected boot=SECONDS", hint="--deadline boot=1500")
    if args.dry_run:
        return _propose(args, progress)
    signers = options.signers(args)
    kind = _validate_files if args.root else _validate_host if args.host else _validate_ami
    report, out = kind(args, progress)
    pipeline.sign_report(report, out, signers)
    return Outcome(writer.summary_text(report, None, out), report.to_json(), report.exit_code)


def _request(
    args: argparse.Namespace, progress: Progress
) -> tuple[Plan, Path, ProofOptions, AbstractContextManager[Session]]:
    """Plan, output folder, options of the proof, and the place that is opened for it."""
    from gpu_ami import pipeline
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.region import SessionRequest

    out = options.existing_plan(args.out)
    proof_options = options.proof_options(args)
    agent = options.agent_package(args, progress)
    request = SessionRequest(args.where, agent, log_groups=args.log_groups, deadlines=options.deadlines(args))
    return Plan.load(out / PLAN_FILE), out, proof_options, pipeline.open_session(request, progress)


def _propose(args: argparse.Namespace, progress: Progress) -> Outcome:
    """What the proof of the AMI would do; nothing is launched."""
    from gpu_ami import pipeline

    plan, _, proof_options, opened = _request(args, progress)
    with opened as session:
        decided = pipeline.decide(plan, proof_options, session)
    return Outcome(decided.text(), decided.to_json())


def _validate_ami(args: argparse.Namespace, progress: Progress) -> tuple[Report, Path]:
    from gpu_ami import pipeline
    from gpu_ami.build import image

    plan, out, proof_options, opened = _request(args, progress)
    out_lock.hold(out)
    ami = args.ami or image.load(out).ami
    with opened as session:
        if args.ami:
            options.require_image(session.cloud, ami, plan.document.get("architecture", ""))
        decided = pipeline.decide(plan, proof_options, session)
        return pipeline.validate_stage(plan, ami, out, session, decided), out


def _validate_host(args: argparse.Namespace, progress: Progress) -> tuple[Report, Path]:
    from gpu_ami.cloud import runs
    from gpu_ami.files import home_dir
    from gpu_ami.plan import PLAN_FILE
    from gpu_ami.region import running_place
    from gpu_ami.validate import REBOOT, Proof, ProofOptions, Target, host_proof, hosts

    plan = _plan_of(args)
    url = hosts.host_url(args.host)
    options.check_identity(args)
    place = running_place(args.where)
    out = args.out or Path("out") / "host"
    out_lock.hold(out)
    instance_type = args.instance_type[0] if args.instance_type else ""
    with runs.begin(home_dir(), place.name if place else "host") as run:
        proof = Proof(
            plan.document if plan else None,
            out / PLAN_FILE if plan else None,
            place,
            out,
            progress,
            ProofOptions(
                checks=args.checks,
                validator_options=options.validator_options(args),
                restarts=(REBOOT,) if args.reboot else (),
                boot_seconds=options.deadlines(args).get("boot_seconds"),
            ),
        )
        target = Target(url, instance_type, args.instance_id, args.identity, args.known_hosts)
        return host_proof.prove_host(proof, run, target), out


def _plan_of(args: argparse.Namespace) -> Plan | None:
    """The plan in OUT; None where no OUT was given. UsageError: there is none in it."""
    from gpu_ami.plan import PLAN_FILE, Plan

    if args.out and not (args.out / PLAN_FILE).exists():
        raise UsageError(
            f"{args.out}: no {PLAN_FILE} there",
            hint="`gpu-ami plan RECIPE -o OUT` writes it; without OUT, no plan is used",
        )
    return Plan.load(args.out / PLAN_FILE) if args.out else None


def _observed_plan(args: argparse.Namespace, out: Path, progress: Progress) -> Plan:
    """Of files for which no plan was given: what is in them. They are judged as they are found."""
    from gpu_ami import observe as observing
    from gpu_ami.commands import observe
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.recipes import load_facts

    with progress.stage(f"read the files of {args.root}"):
        observation = observing.read_files(args.root)
    observe.write(observation, out, observing.instance_types(observation, load_facts()), observe.image_name(args))
    return Plan.load(out / PLAN_FILE)


def _validate_files(args: argparse.Namespace, progress: Progress) -> tuple[Report, Path]:
    from gpu_ami.cloud import runs
    from gpu_ami.files import home_dir
    from gpu_ami.plan import PLAN_FILE
    from gpu_ami.validate import Proof, ProofOptions, host_proof

    named = _plan_of(args)
    reason = host_proof.unusable(args.root)
    if reason:
        raise UsageError(f"--root {args.root}: {reason}")
    out = args.out or Path("out") / "files"
    out_lock.hold(out)
    plan = named or _observed_plan(args, out, progress)
    asked = ProofOptions(checks=args.checks, validator_options=options.validator_options(args))
    files_proof = Proof(plan.document, out / PLAN_FILE, None, out, progress, asked)
    with runs.begin(home_dir(), "files") as run:
        check = functools.partial(host_proof.check, files_proof, args.root)
        return host_proof.prove_files(files_proof, run, check), out
