"""`gpu-ami certify`: report.json → certificate."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, stages

if TYPE_CHECKING:
    from gpu_ami.log import Progress

_EPILOG = """\
Reads OUT/report.json and writes OUT/certificate.json, certificate.md and report.html. Levels: rehearsed (simulated
hardware or a replica took part) < certified (real hardware, vendor packages). Without a PASS there is none.
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "certify", help="a report → a certificate that claims no more than was proven", epilog=_EPILOG
    )
    stages.add_out(parser, "report.json")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import line, report

    out = stages.existing_plan(args.out)
    found = report.load(out / "report.json")
    drawn = line.certify_stage(found, out)
    return Outcome(line.verdict_text(found, drawn, out), drawn.content, report.EXIT_CODES[found.verdict])
