"""`gpu-ami record`: records a machine's hardware in a golden file."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress
    from validator.probes import Golden

_EPILOG = """\
Writes site/golden/<instance type>.json (in a checkout of gpu-ami: variables/golden/): GPUs with address, model and
memory, their links, NVSwitches, EFA. A later proof compares each machine with the plan's facts and with this file,
which it must match exactly. Recording runs no checks, so its verdict is UNPROVEN and its exit code 1. A recording of
simulated hardware applies to simulated hardware only.

With --transcript DIR it writes DIR/transcript.yml instead: files, outputs and packages that the checks read, without
names, ids and addresses, over which all checks can run later (docs/transcripts.md). Read it before you give it away.

examples:
  gpu-ami record --host admin@10.0.0.7 -i key.pem                   a running machine; its metadata has its type
  gpu-ami record --ami ami-0123456789abcdef0 --where aws.yml        boots the plan's instance types, one after the other
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("record", help="record the hardware of an instance type", epilog=_EPILOG)
    options.add_out(parser)
    parser.add_argument(
        "--ami", type=options.ami_id, metavar="AMI", help="boot this AMI instead of the one in build.json"
    )
    parser.add_argument("--host", metavar="URL", help="record this running machine: [ssh://]user@address[:port]")
    options.add_identity(parser)
    parser.add_argument(
        "--instance-type", action="append", default=[], metavar="TYPE",
        help="boot only on this instance type of the plan (repeatable); with --host: the type of that machine",
    )  # fmt: skip
    text = "with --host: write a transcript of the machine to this folder instead of a golden file"
    parser.add_argument("--transcript", metavar="DIR", type=Path, help=text)
    options.add_where(parser)
    options.add_golden(parser, "folder to write to (default: site/golden; in a checkout of gpu-ami: variables/golden)")
    parser.set_defaults(execute=execute, again="--instance-type TYPE records the types that are missing")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.cloud import runs
    from gpu_ami.files import home_dir
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.validate import golden

    if args.host and (args.ami or args.where):
        raise UsageError("--host excludes --ami and --where", hint="--host records a running machine; --ami boots one")
    if args.host and len(args.instance_type) > 1:
        raise UsageError(f"--instance-type {', '.join(args.instance_type)}: --host is one machine, of one type")
    if args.transcript:
        return _transcript(args)
    out = args.out if args.host else options.existing_plan(args.out)
    plan = Plan.load(out / PLAN_FILE) if out else None
    document = plan.document if plan else None
    recordings, differences = [], {}
    for seen in _see_host(args) if plan is None or args.host else _see_ami(args, plan, out, progress):
        recordings.append(golden.keep(seen, args.golden))
        differences[seen.instance_type] = golden.against_facts(seen, document)
    with runs.begin(home_dir(), runs.RECORDING) as run:
        report = golden.report(recordings, document, run, args.ami or "")
    return Outcome(golden.text(recordings, differences), report.to_json(), report.exit_code)


def _transcript(args: argparse.Namespace) -> Outcome:
    from gpu_ami.validate import hosts, transcripts

    if not args.host:
        raise UsageError("--transcript needs --host", hint="a transcript is of a running machine")
    options.check_identity(args)
    target = hosts.ssh_target(hosts.host_url(args.host), args.identity)
    document = transcripts.see(target, args.instance_type[0] if args.instance_type else "")
    path = transcripts.keep(document, args.transcript)
    text = f"{path}: names, ids and addresses were replaced; read it before you give it away"
    return Outcome(text, {"transcript": str(path), "machine": document["machine"]})


def _see_host(args: argparse.Namespace) -> Iterator[Golden]:
    from gpu_ami.validate import golden, hosts

    options.check_identity(args)
    target = hosts.ssh_target(hosts.host_url(args.host), args.identity)
    yield golden.see(target, args.instance_type[0] if args.instance_type else "", "a host by address")


def _see_ami(args: argparse.Namespace, plan: Plan, out: Path, progress: Progress) -> Iterator[Golden]:
    import threading

    from gpu_ami import pipeline
    from gpu_ami.build import image
    from gpu_ami.cloud import login
    from gpu_ami.region import SessionRequest
    from gpu_ami.validate import golden, image_proof, proof
    from gpu_ami.validate.machines import launch, machine

    ami = args.ami or image.load(out).ami
    kinds = image_proof.choose_types(plan.document, args.instance_type)
    with pipeline.open_session(SessionRequest(args.where), progress) as session, ExitStack() as stack:
        if session.cloud.image(ami) is None:  # also the first question to AWS, before anything is made there
            raise UsageError(f"{ami} is not in {session.place.region}, or is not shared with this account")
        tags = session.run.tags(recipe=plan.image, plan_digest=plan.digest)
        key = stack.enter_context(login.temporary_key(session.cloud, session.run, tags))
        stack.enter_context(proof.own_log_groups(session.cloud, session.run, progress))
        for kind in kinds:
            efa = launch.efa_interfaces(plan.document, kind)
            one = launch.launch_of(
                session.cloud,
                session.run,
                ami=ami,
                instance_type=kind,
                key=key,
                tags=tags,
                roles=plan.document["roles"],
                efa_interfaces=efa,
            )
            with launch.launched(session.cloud, one, session.run) as instance:
                ssh_user = plan.document["os"]["ssh_user"]
                boot = machine.Boot(session.cloud, session.run, ssh_user, progress, threading.Event())
                with progress.stage(f"boot {kind}"):
                    booted = boot.follow(instance, kind)
                yield golden.see(boot.target(booted), kind, f"{session.place.name}, {session.place.region}")
