"""`gpu-ami attach`: a plan's roles on a machine that runs already."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.plan import Plan
    from gpu_ami.progress import Progress

_EPILOG = """\
Applies the roles of the image build, but starts the services and leaves out hygiene, which removes a builder's keys and
logs (playbooks/attach.yml). Prints the number of tasks, the tasks that changed something, and the time.
Exit 0; 1: with --unchanged, the machine had drifted from the plan (and is as planned now); 3: a task failed.
--role applies only that role, which takes seconds: use it to test a change of a role on a running machine.

examples:
  gpu-ami attach out/debian12-gpu --host ssh://admin@10.0.0.7 -i key.pem
  gpu-ami attach out/debian12-gpu --host ssh://admin@10.0.0.7 -i key.pem --role nccl
  gpu-ami attach out/debian12-gpu --host ssh://admin@10.0.0.7 -i key.pem --unchanged    has it drifted?
"""
_AGAIN = "the same command goes on: what is as planned already is left as it is"


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("attach", help="apply a plan's roles to a running machine", epilog=_EPILOG)
    options.add_out(parser)
    parser.add_argument("--host", required=True, metavar="URL", help="the machine: ssh://user@address:port")
    options.add_identity(parser)
    options.add_known_hosts(parser)
    parser.add_argument("--unchanged", action="store_true", help="exit 1 if anything had to be changed")
    parser.add_argument(
        "--role", action="append", default=[], metavar="NAME", help="only this role of the plan (repeatable)"
    )
    parser.set_defaults(execute=execute, again=_AGAIN, interrupted="interrupted; what the roles changed so far stays")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.build import Machine, converge
    from gpu_ami.files import data_root, write_json, write_text
    from gpu_ami.plan import ANSIBLE_FILE, PLAN_FILE, Plan, ansible_variables
    from gpu_ami.region import running_place
    from gpu_ami.validate import hosts
    from validator.transport import parse_url

    out = options.existing_plan(args.out)
    plan = Plan.load(out / PLAN_FILE)
    url = hosts.host_url(args.host)
    target = parse_url(url)
    options.check_identity(args)
    roles = _in_plan_order(args.role, plan)
    place = running_place(None)
    local = place is not None and target.address.startswith("127.")
    write_json(out / ANSIBLE_FILE, ansible_variables(plan.document))
    key = hosts.require_reachable(url, args.identity, args.known_hosts)
    if key.first_contact:
        progress.note(key.first_contact)
    pinned = (out / "known_hosts").resolve()
    write_text(pinned, f"{key.line}\n")
    machine = Machine(target.address, target.port, target.user, args.identity, local, pinned)
    with progress.stage(f"attach {plan.image} to {target.name}"):
        converged = converge(
            data_root(),
            (out / ANSIBLE_FILE).resolve(),
            machine,
            roles=roles,
            note=progress.note,
            on_task=lambda number, task: progress.update(task, step=number),
        )
    lines = [converged.text(), *(f"  changed: {name}" for name in converged.changed)]
    drifted = bool(converged.changed) and args.unchanged
    return Outcome("\n".join(lines), asdict(converged), 1 if drifted else 0)


def _in_plan_order(names: Sequence[str], plan: Plan) -> list[str]:
    """The roles of --role, in the plan's order. UsageError: the plan has no such role."""
    planned = [role for role in plan.document["roles"] if role != "hygiene"]
    if unknown := [role for role in names if role not in planned]:
        raise UsageError(f"--role {unknown[0]}: the plan has {', '.join(planned)}")
    return [role for role in planned if role in names]
