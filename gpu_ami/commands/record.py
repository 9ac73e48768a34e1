"""`gpu-ami record`: keep what hardware a machine has, for later proofs to compare with."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, stages
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_ami.log import Progress
    from gpu_ami.plan import Plan
    from validator.oracle import Golden

_EPILOG = """\
Writes variables/golden/<instance type>.json: GPUs with address, model and memory, their links, NVSwitches, EFA. A proof
compares with the plan's facts first, then with this file, exactly. Nothing is judged here: the verdict is UNPROVEN and
the exit code 1, always. What is recorded on simulated hardware holds for simulated hardware alone.

  gpu-ami record --host ssh://admin@10.0.0.7 -i key.pem             a machine that runs; its metadata say its type
  gpu-ami record --ami ami-0123456789abcdef0 --where aws.yml        boots the plan's instance types, one after the other
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("record", help="keep what hardware an instance type has", epilog=_EPILOG)
    stages.add_out(parser)
    parser.add_argument("--ami", metavar="AMI", help="boot this AMI instead of the one in build.json")
    parser.add_argument("--host", metavar="URL", help="look at this running machine: ssh://user@address:port")
    stages.add_identity(parser)
    parser.add_argument(
        "--instance-type", action="append", default=[], metavar="TYPE",
        help="boot only on this instance type of the plan (repeatable); with --host: what that machine is",
    )  # fmt: skip
    stages.add_where(parser)
    stages.add_golden(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import golden, runs
    from gpu_ami.home import home_dir
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.report import EXIT_CODES
    from validator import oracle

    if args.host and (args.ami or args.where):
        raise UsageError("--host goes to a machine that runs; --ami and --where boot one: give one of them")
    if args.host and len(args.instance_type) > 1:
        raise UsageError(f"--instance-type {', '.join(args.instance_type)}: --host is one machine, of one type")
    out = args.out if args.host else stages.existing_plan(args.out)
    plan = Plan.load(out / PLAN_FILE) if out else None
    facts = plan.document if plan else {}
    made, differences = [], {}
    for seen in _see_host(args) if plan is None or args.host else _see_ami(args, plan, out, progress):
        made.append(golden.keep(seen, args.golden or oracle.FOLDER))
        differences[seen.instance_type] = golden.against_facts(seen, facts)
    with runs.begin(home_dir(), "record") as run:
        report = golden.report(made, facts, run, args.ami or "")
    return Outcome(golden.text(made, differences), report.to_json(), EXIT_CODES[report.verdict])


def _see_host(args: argparse.Namespace) -> Iterator[Golden]:
    from gpu_ami import golden
    from validator import ssh

    stages.check_identity(args)
    search = args.identity is None
    try:
        target = ssh.parse_url(args.host, key_file=args.identity, agent=search, search_keys=search)
    except ValueError as error:
        raise UsageError(str(error)) from error
    yield golden.see(target, args.instance_type[0] if args.instance_type else "", "a host by address")


def _see_ami(args: argparse.Namespace, plan: Plan, out: Path, progress: Progress) -> Iterator[Golden]:
    import threading

    from gpu_ami import build, golden, line, machine, proof

    ami = args.ami or build.load(out).ami
    kinds = proof.choose_types(plan.document, args.instance_type)
    with line.standing(args.where, progress) as at, ExitStack() as stack:
        tags = at.run.tags(recipe=plan.image, plan_digest=plan.digest)
        key = stack.enter_context(machine.temporary_key(at.cloud, at.run, tags))
        for kind in kinds:
            efa = proof.efa_interfaces(plan.document, kind)
            with machine.launched(at.cloud, ami, kind, key, at.run, tags, efa) as instance:
                boot = machine.Boot(at.cloud, at.run, plan["os"]["ssh_user"], progress, threading.Event())
                with progress.stage(f"boot {kind}"):
                    booted = boot.follow(instance, kind)
                yield golden.see(boot.target(booted), kind, f"{at.place.name}, {at.place.region}")
