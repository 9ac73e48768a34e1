"""`gpu-ami merge`: joins the reports of shards into one report and its certificate."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import out_lock
from gpu_ami.commands import Outcome, options

if TYPE_CHECKING:
    from gpu_ami.progress import Progress

_EPILOG = """\
A shard is the folder of a proof on some of the plan's instance types. All shards must be of the same plan, AMI, region
and conditions, and together have each instance type of the plan once; otherwise nothing is written (exit code 2).
Writes OUT/report.json, junit.xml, evidence/, report.html and, if the result is a PASS, certificate.json and
certificate.md, and with --sign certificate.dsse.json (gpu-ami certify --help). Exit codes: as gpu-ami validate, of the
merged report.

examples:
  gpu-ami validate out/gpu --instance-type g5.12xlarge      in one job; it keeps out/gpu as an artifact
  gpu-ami validate out/gpu --instance-type p4d.24xlarge     in another job
  gpu-ami merge shards/* -o out/gpu                         in a job after both
  gpu-ami merge shards/* -o out/gpu --sign awskms:///alias/gpu-ami-release --where aws.yml
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "merge",
        help="join the reports of shards into one certificate",
        description="Joins the reports of shards, each on some instance types, into one report and its certificate.",
        epilog=_EPILOG,
    )
    parser.add_argument("shards", type=Path, nargs="+", metavar="SHARD", help="folder with the report.json of a shard")
    parser.add_argument("-o", "--out", type=Path, required=True, metavar="OUT", help="folder to write to")
    options.add_sign(parser)
    options.add_before(parser)
    text = "file (YAML) of the AWS region: of a KMS key without ARN, and of the AMI of --before"
    options.add_where(parser, text)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import pipeline
    from gpu_ami.cloud import Cloud, load_place
    from gpu_ami.report import merge, writer

    signers = options.signers(args)
    cloud = Cloud(load_place(args.where)) if args.where else None
    before = options.image_before(args, cloud)
    shards = merge.load_shards(args.shards)
    report = merge.merge(shards)
    out_lock.hold(args.out)
    with progress.stage(f"merge {len(shards)} shards"):
        merge.copy_files(shards, report, args.out)
        writer.write(report, args.out)
        compared = options.comparison(before, args.out)
        certificate = pipeline.certify_stage(report, args.out, signers, cloud, compared)
    return Outcome(writer.summary_text(report, certificate, args.out), certificate.to_json(), report.exit_code)
