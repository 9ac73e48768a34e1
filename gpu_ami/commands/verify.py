"""`gpu-ami verify`: verifies a signed certificate, its AMI, one path of it, or a running machine."""

from __future__ import annotations

import argparse
import datetime
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.progress import Progress

_EPILOG = """\
TARGET is the folder of a certificate, a file in it, or an AMI whose certificate is under out/ (or at --certificate).
Verified are the signature and its key; each signed file (certificate, report, their pages, bill of materials,
evidence, the site's roles), byte for byte; level, age and waivers; state, snapshots and tags of the AMI in its place.
What was not verified is listed.

exit codes: 0 verified · 6 refused, each reason by its name (docs/release.md) · 2 usage · 4 cloud, network or machine

examples:
  gpu-ami verify out/debian12-gpu --key release.key.pub --level rehearsed
  gpu-ami verify ami-0123456789abcdef0 --trust trust.yml --where aws.yml --max-age 30d
  gpu-ami verify ami-0fedcba9876543210 --copy --certificate out/debian12-gpu --trust trust.yml --where us-east-1.yml
  gpu-ami verify ami-0fedcba9876543210 --copy --owner 111122223333 --certificate DIR --trust trust.yml --where FILE
  gpu-ami verify out/debian12-gpu --trust trust.yml --offline --path /usr/bin/nvidia-smi
  gpu-ami verify out/debian12-gpu --trust trust.yml --where aws.yml --host admin@10.0.0.7 -i key.pem
"""
_AMI = re.compile(r"ami-[0-9a-f]+")
_LEVELS = ("certified", "rehearsed")


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("verify", help="verify a signed certificate, its AMI or a machine", epilog=_EPILOG)
    parser.add_argument("target", metavar="TARGET", help="folder of a certificate, a file in it, or an AMI")
    parser.add_argument("--certificate", type=Path, metavar="DIR", help="with an AMI: the folder of its certificate")
    text = "TARGET is a copy of the AMI of --certificate: verify its origin in EC2"
    parser.add_argument("--copy", action="store_true", help=text)
    text = "with --copy: the publisher's account, for a copy that is shared with this account (docs/release.md)"
    parser.add_argument("--owner", type=_account, metavar="ACCOUNT", help=text)
    trust = parser.add_argument_group("trusted keys")
    text = "public key (PEM) or awskms:///ID whose signature is accepted (repeatable)"
    trust.add_argument("--key", action="append", default=[], metavar="PUB", help=text)
    text = "trusted keys (YAML): keys: [{name, file or kms, expires}]"
    trust.add_argument("--trust", type=Path, metavar="FILE", help=text)
    asked = parser.add_argument_group("requirements")
    text = "lowest accepted level: certified (default) or rehearsed"
    asked.add_argument("--level", choices=_LEVELS, default="certified", help=text)
    asked.add_argument("--max-age", type=_age, metavar="AGE", help="refuse a proof that is older: 30d, 12h")
    text = "check that the signed inventory contains this path, and print its entry (repeatable)"
    asked.add_argument("--path", action="append", default=[], metavar="PATH", help=text)
    where = parser.add_argument_group("where the AMI or the machine is")
    options.add_where(where)
    where.add_argument("--offline", action="store_true", help="make no calls to AWS: verify only signature and files")
    text = "compare this running machine with the certified inventory: [ssh://]user@address[:port]"
    where.add_argument("--host", metavar="URL", help=text)
    options.add_identity(parser)
    parser.set_defaults(execute=execute)


def _account(text: str) -> str:
    if not re.fullmatch(r"\d{12}", text):
        raise argparse.ArgumentTypeError(f"expected an account id of 12 digits, got {text!r}")
    return text


def _age(text: str) -> datetime.timedelta:
    match = re.fullmatch(r"(\d{1,5})([dh])", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"expected days or hours, such as 30d or 12h, got {text!r}")
    return datetime.timedelta(**{"d": {"days": int(match[1])}, "h": {"hours": int(match[1])}}[match[2]])


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.cloud import Cloud
    from gpu_ami.release import keys, verification, verification_place

    if args.offline and args.where:
        raise UsageError("--offline and --where exclude each other")
    if args.copy and (args.offline or not args.certificate or not _AMI.fullmatch(args.target)):
        hint = "gpu-ami verify AMI --copy --certificate DIR --where FILE (the copy's region)"
        raise UsageError("--copy takes an AMI, its place and the certificate of its source AMI", hint=hint)
    if args.owner and not args.copy:
        raise UsageError("--owner is of --copy")
    options.check_identity(args)
    place = _place(args)
    trusted = keys.trusted(args.key, args.trust, place)
    ami = args.target if _AMI.fullmatch(args.target) else ""
    folder = _folder(args, ami)
    copy = ami if args.copy else ""
    asked = verification.Requirements(args.level, "" if copy else ami, args.max_age)
    now = datetime.datetime.now(datetime.UTC)
    with progress.stage(f"verify {folder}"):
        findings, verified = verification.verify(folder, trusted, asked, now)
        if verified is not None:
            for path in args.path:
                verification.verify_path(verified, path, findings)
            if place is None:
                findings.skip("place", "state, snapshots and tags of the AMI (--offline)")
            else:
                verification_place.compare(verified, Cloud(place), findings, copy, args.owner or "")
            if args.host:
                _compare_host(args, verified, findings)
    return Outcome(findings.text(), findings.to_json(), findings.exit_code)


def _compare_host(args: argparse.Namespace, verified: Any, findings: Any) -> None:
    import tempfile

    from gpu_ami import observe
    from gpu_ami.files import data_dir
    from gpu_ami.release import verification_host
    from gpu_ami.validate import hosts

    target = hosts.ssh_target(hosts.host_url(args.host), args.identity)
    verification_host.compare_materials(verified, verification_host.take_materials(target), findings)
    with tempfile.TemporaryDirectory(prefix="gpu-ami-site-") as folder:  # only what was signed explains a file
        folders = [*verified.write_site(Path(folder)), data_dir("roles")]
        verification_host.compare(verified, verification_host.take(target), folders, findings)
    verification_host.compare_components(verified, observe.read_host(target, wait=False), findings)


def _folder(args: argparse.Namespace, ami: str) -> Path:
    """The folder of the certificate. UsageError: that of an AMI is not known."""
    if not ami:
        target = Path(args.target)
        return target.parent if target.is_file() or (target.is_symlink() and not target.is_dir()) else target
    if args.certificate:
        return args.certificate.parent if args.certificate.is_file() else Path(args.certificate)
    from gpu_ami.files import read_json

    for path in sorted(Path("out").glob("*/certificate.json")):
        image = (read_json(path) or {}).get("image")
        if isinstance(image, dict) and image.get("ami") == ami:
            return path.parent
    hint = "name its folder: gpu-ami verify AMI --certificate DIR"
    raise UsageError(f"no certificate of {ami} under out/", hint=hint)


def _place(args: argparse.Namespace) -> Place | None:
    """Where the AMI is asked for; None with --offline. UsageError: no place is named and the local region is down."""
    from gpu_ami.region import running_place

    if args.offline:
        return None
    place = running_place(args.where)
    if place is None:
        hint = "--where FILE names the region; --offline verifies signature and files alone"
        raise UsageError("the AMI's place is not known, and the local region is down", hint=hint)
    return place
