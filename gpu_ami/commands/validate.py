"""`gpu-ami validate`: boot an AMI on each instance type, go to a running host, or into an image's files; check it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, stages
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.log import Progress

_EPILOG = """\
Writes OUT/report.json, OUT/junit.xml and OUT/evidence/. Exit 0: everything promised was seen; 1: a check failed.

  gpu-ami validate                                            the AMI of OUT/build.json on every instance type
  gpu-ami validate out/debian12-gpu --ami ami-0123456789abcdef0 --where aws.yml
  gpu-ami validate --host ssh://admin@10.0.0.7:22 -i key.pem  any running machine; nothing is launched
  gpu-ami validate --host ssh://admin@10.0.0.7 --checks my_checks/
  gpu-ami validate --host ssh://admin@10.0.0.7 --reboot       reboots it, too
  sudo gpu-ami validate out/debian12-gpu --root /mnt          the files of an image: a mounted tree, or a raw disk
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("validate", help="boot an AMI, or go to a host, and check it", epilog=_EPILOG)
    stages.add_out(parser)
    parser.add_argument("--ami", metavar="AMI", help="check this AMI instead of the one in build.json")
    parser.add_argument("--host", metavar="URL", help="check this running machine: ssh://user@address:port")
    parser.add_argument(
        "--root", type=Path, metavar="PATH", help="check the files of an image: a mounted tree, a raw disk"
    )
    stages.add_identity(parser)
    parser.add_argument(
        "--instance-id", default="", metavar="ID", help="with --host: its instance id, if AWS is to be asked about it"
    )
    parser.add_argument(
        "--reboot", action="store_true", help="with --host: reboot it and check again what must survive"
    )
    stages.add_restarts(parser)
    stages.add_where(parser)
    stages.add_agent_package(parser)
    stages.add_instance_types(parser)
    stages.add_checks(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import report

    if sum(map(bool, (args.host, args.ami, args.root))) > 1:
        raise UsageError(
            "--ami, --host and --root exclude each other",
            hint="--ami boots machines, --host goes to one that runs, --root into files",
        )
    if args.root and (args.reboot or args.restarts is not None):
        raise UsageError("--root has nothing to restart: it boots nothing")
    if args.host and args.restarts is not None:
        raise UsageError("--restarts is for machines that we boot", hint="--host takes --reboot, and is never stopped")
    if args.reboot and not args.host:
        raise UsageError("--reboot is for --host", hint="machines that we boot are restarted unless --restarts none")
    stages.restarts(args)  # a mistake in it is told before anything starts
    kind = _validate_files if args.root else _validate_host if args.host else _validate_ami
    found, out = kind(args, progress)
    from gpu_ami import line

    return Outcome(line.verdict_text(found, None, out), found.to_json(), report.EXIT_CODES[found.verdict])


def _validate_ami(args: argparse.Namespace, progress: Progress) -> tuple[Any, Path]:
    from gpu_ami import build, line
    from gpu_ami.plan import PLAN_FILE, Plan

    out = stages.existing_plan(args.out)
    plan = Plan.load(out / PLAN_FILE)
    ask = line.Ask(args.instance_type, args.checks, stages.validator_options(args), stages.restarts(args))
    ami = args.ami or build.load(out).ami
    with line.standing(args.where, progress, stages.agent_package(args, progress)) as at:
        return line.validate_stage(plan, ami, out, at, ask), out


def _validate_host(args: argparse.Namespace, progress: Progress) -> tuple[Any, Path]:
    from gpu_ami import line, proof, runs
    from gpu_ami.home import home_dir
    from gpu_ami.place import load_place
    from gpu_ami.plan import PLAN_FILE
    from gpu_ami.restart import REBOOT

    plan = _plan_of(args)
    stages.check_identity(args)
    place = load_place(args.where) if args.where else line.running_local_place(home_dir())
    out = args.out or Path("out") / "host"
    instance_type = args.instance_type[0] if args.instance_type else ""
    with runs.begin(home_dir(), place.name if place else "host") as run:
        wanted = proof.Proof(
            plan.document if plan else {},
            out / PLAN_FILE if plan else None,
            place,
            out,
            progress,
            args.checks,
            stages.validator_options(args),
            (REBOOT,) if args.reboot else (),
        )
        target = proof.Target(args.host, instance_type, args.instance_id, args.identity)
        found = proof.assemble(wanted, run, "", [proof.prove_host(wanted, target)])
    found.write(out)
    return found, out


def _plan_of(args: argparse.Namespace) -> Any:
    """The plan in OUT; None where no OUT was given. UsageError: there is none in it."""
    from gpu_ami.plan import PLAN_FILE, Plan

    if args.out and not (args.out / PLAN_FILE).exists():
        raise UsageError(
            f"{args.out}: there is no {PLAN_FILE} in it", hint="without OUT a host is checked without a plan"
        )
    return Plan.load(args.out / PLAN_FILE) if args.out else None


def _validate_files(args: argparse.Namespace, progress: Progress) -> tuple[Any, Path]:
    from gpu_ami import image_files, proof, runs
    from gpu_ami.home import home_dir
    from gpu_ami.plan import PLAN_FILE

    plan = _plan_of(args)
    why_not = image_files.unusable(args.root)
    if why_not:
        raise UsageError(f"--root {args.root}: {why_not}")
    out = args.out or Path("out") / "files"
    given = (None, out, progress, args.checks, stages.validator_options(args))
    wanted = proof.Proof(plan.document if plan else {}, out / PLAN_FILE if plan else None, *given)
    with runs.begin(home_dir(), "files") as run:
        found = proof.assemble(wanted, run, "", [image_files.check(wanted, args.root)])
    found.write(out)
    return found, out
