"""`gpu-ami runbook`: what to do for an alarm or an Xid."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome

if TYPE_CHECKING:
    from gpu_ami.progress import Progress
    from gpu_ami.recipes import SiteAlarm

_EPILOG = """\
For the on-call engineer: the meaning, the first step, commands, when to contact AWS Support, and the sources. Without
an argument it lists the alarms. `gpu-ami telemetry PLAN` creates the alarms (docs/telemetry.md); `gpu-ami xid` shows
the details of a code.

examples:
  gpu-ami runbook 79                      an Xid, from the alarm's log event
  gpu-ami runbook 22013                   an SXid: five digits
  gpu-ami runbook 79 --node eks           the same, with cordon and drain of the node
  gpu-ami runbook gpu-reset               an alarm
  gpu-ami runbook gpu-telemetry-gpu-reset the alarm's name in CloudWatch
  gpu-ami runbook gpu-reset --pattern     the filter that finds the alarm's log events
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("runbook", help="what to do for an alarm or an Xid", epilog=_EPILOG)
    parser.add_argument("word", nargs="?", metavar="XID|ALARM", help="an Xid (79), an SXid (22013) or an alarm's name")
    parser.add_argument("--driver", metavar="VERSION", help="driver version; some codes differ between driver branches")
    parser.add_argument("--log-group", metavar="GROUP", help="log group of the JSON events (default: that of plans)")
    parser.add_argument(
        "--pattern", action="store_true", help="print only the filter pattern of the alarm's log events"
    )
    text = "also drain and return the node: eks, ecs, slurm (ParallelCluster), or asg (Auto Scaling group)"
    parser.add_argument("--node", choices=("eks", "ecs", "slurm", "asg"), help=text)
    text = "folder of a site, whose alarms.yml has alarms of its own (default: %(default)s)"
    parser.add_argument("--site", type=Path, default=Path("site"), metavar="DIR", help=text)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from dataclasses import asdict

    from gpu_ami.recipes import ALARMS_FILE, read_site_alarms
    from gpu_ami.telemetry import alarms, find_runbook, load_alarms

    of_site = read_site_alarms(args.site / ALARMS_FILE)
    if args.pattern:
        return _pattern(args.word, of_site)
    if args.word is None:
        rows = [_short(alarm) for alarm in load_alarms()] + [_short_own(alarm) for alarm in of_site]
        return Outcome(alarms.listing(of_site), rows)
    found = find_runbook(args.word, args.log_group or _default_group(), args.driver, of_site)
    found = alarms.on_node(found, args.node) if args.node else found
    return Outcome(alarms.runbook_text(found), asdict(found))


def _short(alarm: Any) -> dict[str, str]:
    return {key: getattr(alarm, key) for key in ("name", "kind", "urgency", "title")}


def _short_own(alarm: SiteAlarm) -> dict[str, str]:
    return {"name": alarm.name, "kind": "site", "urgency": alarm.urgency, "title": alarm.title}


def _pattern(word: str | None, of_site: Sequence[SiteAlarm]) -> Outcome:
    from gpu_ami.errors import UsageError
    from gpu_ami.telemetry import alarms

    own = alarms.own_named(word or "", of_site)
    if own and own.logs:
        return Outcome(own.logs.pattern, {"name": own.name, "pattern": own.logs.pattern})
    alarm = alarms.named(word or "")
    if alarm is None or not alarm.actions:
        raise UsageError("--pattern takes an alarm of events", hint="gpu-ami runbook lists the alarms")
    return Outcome(alarm.pattern, {"name": alarm.name, "pattern": alarm.pattern})


def _default_group() -> str:
    from gpu_ami.files import data_dir, read_yaml

    defaults = read_yaml(data_dir("variables", "defaults.yml"), "it belongs to gpu-ami: reinstall it")
    return str(defaults["telemetry"]["json_log_group"])
