"""`gpu-ami merge`: joins the reports of shards into one report and its certificate."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import out_lock
from gpu_ami.commands import Outcome, options

if TYPE_CHECKING:
    from collections.abc import Sequence

    from securesystemslib.signer import Signer

    from gpu_ami.progress import Progress
    from gpu_ami.report import certificate as certificates
    from gpu_ami.report import merge as merging

_REFUSED = 6

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
    parser.add_argument(
        "-o", "--out", type=options.output_folder, required=True, metavar="OUT", help="folder to write to"
    )
    options.add_sign(parser)
    options.add_report_keys(parser)
    options.add_before(parser)
    text = "file (YAML) of the AWS region: of a KMS key without ARN, and of the AMI of --before"
    options.add_where(parser, text)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import pipeline
    from gpu_ami.cloud import Cloud, load_place
    from gpu_ami.report import certificate as certificates
    from gpu_ami.report import merge, writer

    signers = options.signers(args)
    cloud = Cloud(load_place(args.where)) if args.where else None
    before = options.image_before(args, cloud)
    shards = merge.load_shards(args.shards)
    report = merge.merge(shards)
    origin = _origin(args, shards, signers)
    if origin.refused and report.exit_code == 0:
        hint = "take the artifact from the job that made it"
        return Outcome(f"not merged: {origin.refused}\n  → {hint}", {"refused": origin.refused}, _REFUSED)
    out_lock.hold(args.out)
    with progress.stage(f"merge {len(shards)} shards"):
        merge.copy_files(shards, report, args.out)
        writer.write(report, args.out)
        if not origin.unsigned:
            pipeline.sign_report(report, args.out)
        compared = options.comparison(before, args.out)
        certificate = pipeline.certify_stage(report, args.out, signers, cloud, compared, origin=origin)
    text = writer.summary_text(report, certificate, args.out)
    if origin.unsigned and certificates.level_of(report) == certificates.CERTIFIED:
        text = f"{text}\nrehearsed, not certified: {origin.unsigned}"
    return Outcome(text, certificate.to_json(), report.exit_code)


def _origin(
    args: argparse.Namespace, shards: Sequence[merging.Shard], signers: Sequence[Signer]
) -> certificates.ReportOrigin:
    """Of all shards: each must be signed by the job that made it, or by this machine."""
    from gpu_ami.report import certificate as certificates

    origins = [(shard.folder, options.report_origin(args, shard.report, shard.folder, signers)) for shard in shards]
    unsigned = [f"{folder.name}: {origin.unsigned}" for folder, origin in origins if origin.unsigned]
    refused = [f"{folder}: {origin.refused}" for folder, origin in origins if origin.refused]
    return certificates.ReportOrigin("; ".join(unsigned), "; ".join(refused))
