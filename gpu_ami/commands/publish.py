"""`gpu-ami publish`: copies, shares and announces a certified image as a release policy says; rolls back."""

from __future__ import annotations

import argparse
import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.cloud import Place
    from gpu_ami.progress import Progress
    from gpu_ami.publish import record as records
    from gpu_ami.release import verification

_EPILOG = """\
OUT is the folder of a certificate that `gpu-ami verify` accepts; nothing else is published. The policy (YAML,
docs/release.md) names the regions, their KMS keys, the accounts to share with, SSM parameters, and how long images
are kept; `images` overrides keys for an image, by the name of its recipe. In each region: copy, wait until it is
available, tags, protection, deprecation date, sharing, the parameter of this version. After that has succeeded
in all regions, PREFIX/latest is updated; then older images are deprecated and retired.

A second run changes nothing, and an interrupted run is continued by the same command. OUT/publication.json records
the steps. If a region fails, the others continue, and PREFIX/latest is changed in no region.

exit codes: 0 published · 6 the certificate is refused · 4 a region failed · 2 usage · 130 interrupted

examples:
  gpu-ami publish out/debian12-gpu --key release.key.pub --where aws.yml --dry-run
  gpu-ami publish out/debian12-gpu --trust trust.yml --where aws.yml --policy publish.yml
  gpu-ami publish out/debian12-gpu --where aws.yml --to previous         latest is the previous image again
  gpu-ami publish out/debian12-gpu --key release.key.pub --level rehearsed     in the local region
"""
_LEVELS = ("certified", "rehearsed")
_AGAIN = "run the same command again: it goes on from there (publication.json says what was done)"


def register(subparsers: Any) -> None:
    text = "copy, share and announce a certified image; deprecate and retire older ones"
    parser = subparsers.add_parser("publish", help=text, epilog=_EPILOG)
    options.add_out(parser, "certificate.json")
    text = "release policy (YAML; default: publish.yml)"
    parser.add_argument("--policy", type=Path, default=Path("publish.yml"), metavar="FILE", help=text)
    text = "print the steps and change nothing"
    parser.add_argument("-n", "--dry-run", action="store_true", help=text)
    text = "roll back: point PREFIX/latest to this version (name of an AMI), AMI or `previous`; nothing is deleted"
    parser.add_argument("--to", metavar="VERSION", help=text)
    trust = parser.add_argument_group("what must be verified (gpu-ami verify)")
    text = "public key (PEM) or awskms:///ID whose signature is accepted (repeatable)"
    trust.add_argument("--key", action="append", default=[], metavar="PUB", help=text)
    text = "trusted keys (YAML): keys: [{name, file or kms, expires}]"
    trust.add_argument("--trust", type=Path, metavar="FILE", help=text)
    text = "lowest published level: certified (default), or rehearsed (local region only)"
    trust.add_argument("--level", choices=_LEVELS, default="certified", help=text)
    options.add_where(parser)
    parser.set_defaults(execute=execute, again=_AGAIN, interrupted="interrupted; what was done stays, and is on record")


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.publish import policy

    folder = _folder(args.out)
    policy.load_policy(args.policy)  # its mistakes first; which image's keys hold is known from the certificate
    place = _place(args)
    if args.to:
        return _roll_back(args, folder, place, progress)
    if args.level == "rehearsed" and not place.machines.simulated:
        hint = "prove the image on real hardware; a rehearsal can be published in the local region, to try the policy"
        raise UsageError(f"--level rehearsed: {place.name} is no simulated place", hint=hint)
    findings, verified = _verify(args, folder, place, progress)
    if findings.refused or verified is None:
        return Outcome(f"{findings.text()}\nnot published", findings.to_json(), findings.exit_code)
    return _publish(args, verified, place, progress)


def _publish(args: argparse.Namespace, verified: verification.Verified, place: Place, progress: Progress) -> Outcome:
    from gpu_ami.publish import policy, publication
    from gpu_ami.release import statement

    certificate = verified.certificate
    image = {
        "ami": certificate.image.ami,
        "region": certificate.image.region,
        "recipe": certificate.image.name,
        "level": certificate.level,
        "plan_digest": certificate.plan_digest,
        "certificate_sha256": _sha256(verified.folder / statement.ENVELOPE_FILE),
    }
    request = publication.Request(
        ami=certificate.image.ami,
        recipe=certificate.image.name,
        image=image,
        policy=policy.load_policy(args.policy, certificate.image.name),
        policy_sha256=_sha256(args.policy),
        folder=None if args.dry_run else verified.folder,
    )
    return _outcome(publication.publish(place, request, progress))


def _roll_back(args: argparse.Namespace, folder: Path, place: Place, progress: Progress) -> Outcome:
    """The certificate names the recipe; the image that `latest` gets was verified when it was published."""
    from gpu_ami.publish import policy, publication
    from gpu_ami.report import certificate as certificates

    recipe = certificates.load(folder / certificates.CERTIFICATE_FILE).image.name
    own = policy.load_policy(args.policy, recipe)
    request = publication.RollbackRequest(recipe, args.to, own, _sha256(args.policy), None if args.dry_run else folder)
    return _outcome(publication.roll_back(place, request, progress))


def _outcome(record: records.Record) -> Outcome:
    return Outcome(record.text(), record.to_json(), 4 if record.failed else 0)


def _verify(
    args: argparse.Namespace, folder: Path, place: Place, progress: Progress
) -> tuple[verification.Findings, verification.Verified | None]:
    """As `gpu-ami verify` does, with the AMI in its place. A certificate of a host has nothing to publish."""
    from gpu_ami.cloud import Cloud
    from gpu_ami.release import keys, verification, verification_place

    trusted = keys.trusted(args.key, args.trust, place)
    asked = verification.Requirements(args.level)
    with progress.stage(f"verify {folder}"):
        findings, verified = verification.verify(folder, trusted, asked, datetime.datetime.now(datetime.UTC))
        if verified is not None:
            verification_place.compare(verified, Cloud(place), findings)
            if not verified.certificate.image.ami:
                raise UsageError(f"{folder}: the certificate is of a host: there is no AMI to publish")
    return findings, verified


def _folder(out: Path | None) -> Path:
    folder = options.existing_plan(out)
    return folder.parent if folder.is_file() else folder


def _place(args: argparse.Namespace) -> Place:
    from gpu_ami.region import running_place

    place = running_place(args.where)
    if place is None:
        hint = "--where FILE names the region on AWS; `gpu-ami region up` starts the local one"
        raise UsageError("the AMI's place is not known, and the local region is down", hint=hint)
    return place


def _sha256(path: Path) -> str:
    import hashlib

    return hashlib.sha256(path.read_bytes()).hexdigest()
