"""`gpu-ami diff`: how two images differ, and release notes."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud
    from gpu_ami.progress import Progress
    from gpu_ami.release import image_description
    from validator.file_account import Inventory

_EPILOG = """\
An image is named by a plan.json, observation.json, report.json or certificate.json, by the folder of a run, or by an
AMI id: then the files under out/ are used that name this AMI, or the plan in its tags (--where). A raw disk image
(.raw, .img) or a mounted tree also works, as root. Compared are versions, the rest of the plan, packages, files by
component, units, accounts, kernel settings, metrics and streams, checks and times. What cannot be compared is listed.
Two recipes that were not built: gpu-ami plan --diff A B.

examples:
  gpu-ami diff out/debian12-gpu out/debian12-gpu-new
  gpu-ami diff ami-0aaa ami-0bbb --where aws.yml --format html > diff.html
  gpu-ami diff old/observation.json out/observed/observation.json  images that others built (gpu-ami observe)
  gpu-ami diff --same out/full out/layered                         compares two builds of a plan; exit code 1: different
  gpu-ami diff --notes old/certificate.json out/debian12-gpu       release notes in Markdown
  gpu-ami diff --notes ami-0bbb --where aws.yml                    since the previous image of this recipe
  gpu-ami diff --notes out/debian12-gpu --where aws.yml            the same, for the AMI that was proven there
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser("diff", help="show how two images differ; write release notes", epilog=_EPILOG)
    parser.add_argument("image", nargs="+", metavar="IMAGE", help="the older image, then the newer one")
    parser.add_argument("--format", choices=("text", "markdown", "html", "json"), default="text", help="default: text")
    text = "release notes in Markdown; with one image: since the previous AMI of its recipe in the place"
    parser.add_argument("--notes", action="store_true", help=text)
    text = "compare two builds of one plan: exit code 1 if there are unexpected differences (docs/layers.md)"
    parser.add_argument("--same", action="store_true", help=text)
    options.add_where(parser)
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.release import comparison, image_description

    cloud = _cloud(args)
    if args.same:
        return _same(args, cloud)
    *others, after = (image_description.describe(name, cloud) for name in _named(args))
    before = others[0] if others else _before(after, cloud)
    compared = comparison.compare(before, after) if before else comparison.first(after)
    data = comparison.to_json(compared)
    if args.notes:
        return Outcome(comparison.notes(compared), data)
    if args.format == "json":
        import json

        return Outcome(json.dumps(data, indent=2, ensure_ascii=False), data)
    render = {"text": comparison.text, "markdown": comparison.markdown, "html": comparison.html}[args.format]
    return Outcome(render(compared), data)


def _same(args: argparse.Namespace, cloud: Cloud | None) -> Outcome:
    """Whether two builds have the same content: of their inventories, or of disks in the local region. UsageError."""
    from dataclasses import asdict

    from gpu_ami.release import image_description, rebuild

    if args.notes or args.format != "text":
        raise UsageError("--same prints text, or JSON with --json: leave out --notes and --format")
    before, after = (image_description.describe(name, cloud) for name in _named(args))
    judged = rebuild.judge(_inventory(before), _inventory(after))
    return Outcome(rebuild.text(judged), {"same": judged.is_same, **asdict(judged)}, 0 if judged.is_same else 1)


def _inventory(image: image_description.ImageDescription) -> Inventory:
    """The inventory of the proof; without a proof, of the AMI's disk where the local region keeps it."""
    from gpu_ami.files import home_dir
    from gpu_ami.release import image_description

    disk = home_dir() / "images" / (image.ami or "none") / "disk.raw"
    if image.inventory is None and disk.is_file():
        return image_description.take_inventory(disk)
    if image.inventory is None:
        hint = "prove it, or name its files: a raw disk image or a mounted tree"
        raise UsageError(f"{image.title}: no inventory of its files was found", hint=hint)
    return image.inventory


def _named(args: argparse.Namespace) -> list[str]:
    """Two images; with --notes, one is enough. UsageError."""
    if len(args.image) == 2 or (len(args.image) == 1 and args.notes):
        return list(args.image)
    raise UsageError(f"expected two images, got {len(args.image)}", hint="gpu-ami diff BEFORE AFTER")


def _before(
    after: image_description.ImageDescription, cloud: Cloud | None
) -> image_description.ImageDescription | None:
    """The image before one, in its place; None if it is the first of its recipe. UsageError: its place is not known."""
    if cloud is None or not after.ami:
        hint = "name the image before it: gpu-ami diff --notes BEFORE AFTER; or an AMI's place with --where"
        raise UsageError(f"the image before {after.name} is not known", hint=hint)
    from gpu_ami.cloud import amis
    from gpu_ami.release import image_description

    previous = amis.previous(cloud, after.ami)
    return image_description.describe(previous, cloud) if previous else None


def _cloud(args: argparse.Namespace) -> Cloud | None:
    """The place whose AMIs are asked for: --where, or the local region if it is up and may be needed."""
    from gpu_ami.cloud import Cloud, load_place
    from gpu_ami.region import running_place

    if args.where:
        return Cloud(load_place(args.where))
    if len(args.image) > 1 and not any(name.startswith("ami-") and not Path(name).exists() for name in args.image):
        return None
    place = running_place(None)
    return Cloud(place) if place else None
