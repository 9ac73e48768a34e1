"""`gpu-ami fleet`: telemetry on machines in service, through AWS Systems Manager."""

from __future__ import annotations

import argparse
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options
from gpu_ami.errors import UsageError, counted

if TYPE_CHECKING:
    from gpu_ami.cloud import systems_manager
    from gpu_ami.fleet import Attachment, Check, Condition, MachineProof
    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress

_EPILOG = """\
Installs a plan's CloudWatch agent configuration and event parser on machines that Systems Manager manages, without SSH
and without a new image, and removes them (docs/fleet.md).

exit codes: 0 done or proven on every machine · 1 a machine failed · 4 cloud or network, or a machine did not respond

examples:
  gpu-ami fleet attach out/al2023-compute --where aws.yml --tag fleet=training --dry-run
  gpu-ami fleet attach out/al2023-compute --where aws.yml --auto-scaling-group train --future
  gpu-ami fleet status out/al2023-compute --where aws.yml --tag fleet=training
  gpu-ami fleet prove  out/al2023-compute --where aws.yml --tag fleet=training -i key.pem
  gpu-ami fleet detach out/al2023-compute --where aws.yml --tag fleet=training
"""
_INTERRUPTED = "interrupted; commands that were sent run on, and what was made stays"
_AGAIN = "the same command goes on; `gpu-ami fleet status` says what each machine runs"
_LIMIT = re.compile(r"[1-9]\d{0,6}|[1-9]\d?%|100%|0")


def register(subparsers: Any) -> None:
    formatter = argparse.RawDescriptionHelpFormatter
    text = "telemetry on machines in service: attach, status, prove, detach"
    parser = subparsers.add_parser("fleet", help=text, epilog=_EPILOG, formatter_class=formatter)
    verbs = parser.add_subparsers(dest="verb", metavar="VERB", required=True, help="details: gpu-ami fleet VERB --help")
    attach = _verb(verbs, "attach", "install a plan's telemetry on machines")
    attach.add_argument("--dry-run", action="store_true", help="print what would be created and sent")
    text = "also attach to machines launched later, with a State Manager association of the tags"
    attach.add_argument("--future", action="store_true", help=text)
    _verb(verbs, "status", "which plan each machine runs, whether its services run, and what gpu-ami-diagnose finds")
    _verb(verbs, "detach", "remove everything that attach installed")
    prove = _verb(verbs, "prove", "run the telemetry's checks on machines in service")
    options.add_identity(prove, "private key for SSH")
    prove.add_argument("--ssh-user", default="", metavar="USER", help="default: the plan's login user")
    text = "do not log in: use only Systems Manager and CloudWatch"
    prove.add_argument("--no-login", action="store_true", help=text)
    parser.set_defaults(execute=execute, again=_AGAIN, interrupted=_INTERRUPTED)


def _verb(verbs: Any, name: str, text: str) -> argparse.ArgumentParser:
    parser: argparse.ArgumentParser = verbs.add_parser(name, help=text)
    options.add_out(parser)
    options.add_where(parser)
    parser.add_argument("--instance-id", action="append", default=[], metavar="ID", help="this machine (repeatable)")
    text = "machines with this tag (repeatable: with all of them)"
    parser.add_argument("--tag", action="append", default=[], metavar="KEY=VALUE", help=text)
    parser.add_argument("--auto-scaling-group", default="", metavar="NAME", help="the machines of this group")
    text = "concurrent machines, a number or a percentage (default: %(default)s)"
    parser.add_argument("--max-concurrency", type=_limit, default="10", metavar="N", help=text)
    text = "failed machines after which the command stops, a number or a percentage (default: %(default)s)"
    parser.add_argument("--max-errors", type=_limit, default="0", metavar="N", help=text)
    return parser


def _limit(text: str) -> str:
    if not _LIMIT.fullmatch(text):
        raise argparse.ArgumentTypeError(f"expected a number or a percentage, such as 10 or 25%, got {text!r}")
    return text


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.cloud import Cloud, systems_manager
    from gpu_ami.fleet import attachment, payload
    from gpu_ami.plan import PLAN_FILE, Plan

    selection = systems_manager.Selection.of(args.instance_id, args.tag, args.auto_scaling_group)
    if getattr(args, "future", False):
        attachment.require_future(selection)
    plan = Plan.load(options.existing_plan(args.out) / PLAN_FILE)
    if "cloudwatch_agent" not in plan.document or "event_parser" not in plan.document:
        raise UsageError(f"{plan.image}: the plan has no telemetry", hint="roles cloudwatch_agent and event_parser")
    cloud = Cloud(_place(args))
    found = systems_manager.find(cloud, selection)
    limits = systems_manager.Limits(args.max_concurrency, args.max_errors)
    task = attachment.Attachment(cloud, payload.bundle(plan), found, limits, progress)
    verbs = {"attach": _attach, "status": _status, "detach": _detach, "prove": _prove}
    return verbs[args.verb](args, task, plan, selection)


def _place(args: argparse.Namespace) -> Any:
    from gpu_ami.region import running_place

    place = running_place(args.where)
    if place is None:
        raise UsageError("the local region is not up", hint="--where FILE names a place on AWS; or: gpu-ami region up")
    return place


def _attach(args: argparse.Namespace, task: Attachment, _plan: Plan, selection: systems_manager.Selection) -> Outcome:
    from gpu_ami.fleet import attachment

    if args.dry_run:
        lines = attachment.plan_steps(task.bundle, task.machines, args.future)
        return Outcome("\n".join(lines), {"dry_run": lines})
    outcomes = task.attach()
    association = task.follow_future(selection) if args.future else ""
    return _of_outcomes(task, outcomes, {"plan": task.bundle.digest, "association": association})


def _detach(_: argparse.Namespace, task: Attachment, _plan: Plan, _selection: systems_manager.Selection) -> Outcome:
    return _of_outcomes(task, task.detach(), {"plan": task.bundle.digest, "association": ""})


def _of_outcomes(task: Attachment, outcomes: dict[str, systems_manager.Outcome], more: dict[str, str]) -> Outcome:
    """Exit code 1: a machine failed; 4: none failed, and one did not answer."""
    from gpu_ami.cloud import systems_manager

    rows = [
        {"instance_id": each.instance_id, "instance_type": each.instance_type, "name": each.name,
         "status": outcomes[each.instance_id].status, "text": outcomes[each.instance_id].text}
        for each in task.machines
    ]  # fmt: skip
    for row in rows:
        row["text"] = "" if row["status"] == systems_manager.SUCCESS else row["text"]
    statuses = {row["status"] for row in rows}
    code = 1 if systems_manager.FAILED in statuses else 0 if statuses == {systems_manager.SUCCESS} else 4
    lines = [_line(row["instance_id"], row["instance_type"], row["status"], row["text"]) for row in rows]
    done = sum(row["status"] == systems_manager.SUCCESS for row in rows)
    lines.append(f"{done} of {counted(len(rows), 'machine')}")
    return Outcome("\n".join(lines), {**more, "machines": rows}, code)


def _line(instance_id: str, instance_type: str, state: str, text: str = "") -> str:
    line = f"{instance_id}  {instance_type:14}  {state}"
    return f"{line}: {text}" if text else line


def _status(_: argparse.Namespace, task: Attachment, plan: Plan, _selection: systems_manager.Selection) -> Outcome:
    from gpu_ami.fleet import condition

    rows = condition.ask(task.cloud, task.bundle, task.machines, task.limits)
    lines = []
    for each in rows:
        lines.append(_line(each.machine.instance_id, each.machine.instance_type, each.state, each.reason))
        lines += [f"    {finding}" for finding in each.findings]
    lines += [f"plan {plan.digest} ({plan.image}): {_counts(each.state for each in rows)}"]
    return Outcome("\n".join(lines), {"plan": plan.digest, "machines": [each.to_json() for each in rows]})


def _counts(words: Iterable[str]) -> str:
    listed = list(words)
    return ", ".join(f"{listed.count(word)} {word}" for word in sorted(set(listed)))


def _prove(args: argparse.Namespace, task: Attachment, plan: Plan, _selection: systems_manager.Selection) -> Outcome:
    from gpu_ami.cloud import runs
    from gpu_ami.files import home_dir
    from gpu_ami.fleet import condition

    options.check_identity(args)
    with task.progress.stage(f"ask {counted(len(task.machines), 'machine')}"):
        conditions = condition.ask(task.cloud, task.bundle, task.machines, task.limits, plan.document)
    place = task.cloud.place
    with runs.begin(home_dir(), place.name, place_file=place.file) as run:
        check = None if args.no_login else _check(args, task, plan, run)
        proofs = condition.prove(conditions, check, _workers(args.max_concurrency, len(conditions)))
    lines = [
        _line(each.condition.machine.instance_id, each.condition.machine.instance_type, each.verdict, _why(each))
        for each in proofs
    ]
    lines.append(f"plan {plan.digest} ({plan.image}): {_counts(each.verdict for each in proofs)}")
    data = {"plan": plan.digest, "machines": [each.to_json() for each in proofs]}
    return Outcome("\n".join(lines), data, condition.exit_code(proofs))


def _why(proof: MachineProof) -> str:
    state = proof.condition.state
    return "" if proof.verdict == "PASS" else "\n    ".join([state, *proof.reasons] if state != "ok" else proof.reasons)


def _workers(limit: str, machines: int) -> int:
    number = machines * int(limit[:-1]) // 100 if limit.endswith("%") else int(limit)
    return max(1, min(number, 16))  # a process each, on this machine


def _check(args: argparse.Namespace, task: Attachment, plan: Plan, run: Any) -> Check:
    """Runs the telemetry's checks on one machine, over SSH or the tunnel of the place."""
    from gpu_ami.cloud import login
    from gpu_ami.fleet import condition as conditions
    from gpu_ami.plan import PLAN_FILE
    from gpu_ami.validate import Proof, ProofOptions, Target

    out, place = options.existing_plan(args.out), task.cloud.place
    shared = Proof(
        plan.document,
        out / PLAN_FILE,
        place,
        out / "fleet",
        task.progress,
        ProofOptions(validator_options=["-k", conditions.SELECTION]),
    )
    user = args.ssh_user or plan.document["os"]["ssh_user"]
    interface = place.login.ssh_interface

    def check(condition: Condition) -> Any:
        machine = condition.machine
        target = Target(
            f"ssh://{user}@{machine.addresses.get(interface, '')}:{place.login.ssh_port}", machine.instance_type,
            machine.instance_id, args.identity, Path(run.folder) / f"known_hosts.{machine.instance_id}",
            name=machine.instance_id, proxy_command=login.proxy_command(place, machine.instance_id),
        )  # fmt: skip
        with task.progress.stage(f"check {machine.instance_id}", machine.instance_id):
            return shared.check(target)

    return check
