"""`gpu-ami certify`: writes the certificate of a report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami import out_lock
from gpu_ami.commands import Outcome, check_options, options

if TYPE_CHECKING:
    from gpu_ami.progress import Progress

_EPILOG = """\
Reads OUT/report.json. Writes OUT/report.html and, if the report is a PASS, OUT/certificate.json and certificate.md.
Also writes OUT/bom.cdx.json (CycloneDX 1.6): packages, kernel modules and files of the image.
Levels: rehearsed (simulated hardware or a replica was used) < certified (real hardware, vendor packages, and an Xid
of the kernel driver). A report is refused (exit code 6) if it was changed after the proof, or if a pytest plugin, a
conftest.py or checks took part that the command line did not name. A report from another machine is at most
`rehearsed`, unless its job signed it (validate --sign) and that key is trusted here (--key, --trust). --sign also
writes OUT/certificate.dsse.json for `gpu-ami verify`: an in-toto statement of the signed files, the AMI and its
snapshots. Other exit codes: as gpu-ami validate.
See docs/certificate.md and docs/release.md.

examples:
  gpu-ami certify                       the only report under out/
  gpu-ami certify out/debian12-gpu --sign release.key
  gpu-ami certify out/debian12-gpu --before out/debian12-gpu-old     with the differences in report.html
  gpu-ami certify out/debian12-gpu --scan 'grype sbom:{sbom} --fail-on high' --waivers waivers.yml
  gpu-ami certify out/debian12-gpu --sign awskms:///alias/gpu-ami-release --where aws.yml
"""


_REFUSED = 6


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("certify", help="write the certificate of a report", epilog=_EPILOG)
    options.add_out(parser, "report.json")
    options.add_sign(parser)
    options.add_report_keys(parser)
    options.add_before(parser)
    options.add_scan(parser)
    text = "waivers of --scan: YAML as for gpu-ami validate (check: scan::PROGRAM)"
    parser.add_argument("--waivers", type=Path, metavar="FILE", help=text)
    text = (
        "file (YAML) of the AWS region: of a KMS key without ARN, of the AMI of --before, and of an AMI's snapshots if"
        " build.json is not there"
    )
    options.add_where(parser, text)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import pipeline
    from gpu_ami.cloud import Cloud, load_place
    from gpu_ami.report import certificate as certificates
    from gpu_ami.report import document, writer

    out = options.existing_plan(args.out)
    out_lock.hold(out)
    report = document.load(out / document.REPORT_FILE)
    signers, scans = options.signers(args), options.scans(args)
    check_options.require_waivers(args.waivers)
    cloud = Cloud(load_place(args.where)) if args.where else None
    before = options.image_before(args, cloud)
    origin = options.report_origin(args, report, out, signers)
    report = pipeline.scan_stage(report, out, scans, args.waivers, origin)
    certificate = pipeline.certify_stage(report, out, signers, cloud, options.comparison(before, out), origin=origin)
    refusal = (origin.refused or certificates.refusal(report)) if report.exit_code == 0 else ""
    text = writer.summary_text(report, certificate, out)
    if refusal:
        hint = "run `gpu-ami validate` again; --checks names your own checks"
        text = f"{text}\nno certificate: {refusal}\n  → {hint}"
    elif origin.unsigned and certificates.level_of(report) == certificates.CERTIFIED:
        text = f"{text}\nrehearsed, not certified: {origin.unsigned}"
    return Outcome(text, certificate.to_json(), _REFUSED if refusal else report.exit_code)
