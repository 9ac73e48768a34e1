"""`gpu-ami xid`: what a code means and what to do about it on EC2."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome

if TYPE_CHECKING:
    from gpu_ami.progress import Progress

_EPILOG = """\
Names and actions are NVIDIA's (Xid catalogue, nverror.h, Fabric Manager user guide), with the action's meaning on EC2.
Severities are this project's; /etc/gpu-ami/xid-policy.json overrides them on an instance.

examples:
  gpu-ami xid 63                       one code
  gpu-ami xid 48 63 94                 several
  gpu-ami xid 139 --driver 535.129.03  the meaning in that driver branch
  gpu-ami xid 22013                    an NVSwitch code (SXid: five digits)
  gpu-ami xid "NVRM: Xid (PCI:0000:53:00): 79, …"   the code in a line of a kernel log
  gpu-ami xid RM_INIT_FAILED           a GPU initialisation or Neuron error, by its name
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("xid", help="explain an Xid or SXid: cause, severity, action on EC2", epilog=_EPILOG)
    parser.add_argument("code", nargs="+", metavar="CODE", help="number of an Xid (63) or SXid (12028), or a name")
    parser.add_argument("--driver", metavar="VERSION", help="driver version; some codes differ between driver branches")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from dataclasses import asdict

    from gpu_ami.events import catalogue
    from gpu_ami.telemetry import alarms

    explanations = [catalogue.explain(code, args.driver) for code in args.code]
    texts = [catalogue.as_text(one, alarms.first_step(one)) for one in explanations]
    return Outcome(text="\n\n".join(texts), data=list(map(asdict, explanations)))
