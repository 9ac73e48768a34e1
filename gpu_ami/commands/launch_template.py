"""`gpu-ami launch-template`: a launch template of an image for each instance type."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options
from gpu_ami.errors import UsageError
from validator.inputs import read_text

if TYPE_CHECKING:
    from gpu_ami.cloud import Cloud, Place, launch_templates
    from gpu_ami.progress import Progress

_EPILOG = """\
The template has the launch settings of a proof of the image, from the same code: an EFA on each network card that
supports one, IMDSv2 required, the place's subnet, security groups and instance profile, its purchase option (on-demand,
spot, reservation, capacity block). Without --make it is only printed. An existing template gets a new version, which
becomes the default. Instances have no tag of a run: `gpu-ami sweep` does not terminate them (docs/fleet.md).

examples:
  gpu-ami launch-template out/al2023-compute --where aws.yml                       one document for each instance type
  gpu-ami launch-template out/al2023-compute --where aws.yml --make                creates them
  gpu-ami launch-template ami-0123456789abcdef0 --instance-type p5.48xlarge --where aws.yml --placement-group train
  gpu-ami launch-template out/al2023-compute --where aws.yml --format cloudformation > templates.json
"""
FORMATS = ("json", "cloudformation")


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "launch-template", help="create or print launch templates of an image", epilog=_EPILOG
    )
    parser.add_argument("image", metavar="AMI|OUT", help="an AMI, or the folder with its plan.json and build.json")
    options.add_where(parser)
    text = "only this instance type of the plan (repeatable); required with an AMI"
    parser.add_argument("--instance-type", action="append", default=[], metavar="TYPE", help=text)
    parser.add_argument("--format", choices=FORMATS, default="json", help="what is printed (default: %(default)s)")
    parser.add_argument("--make", action="store_true", help="create the templates through the EC2 API")
    parser.add_argument("--name", default="", help="name before -<instance type> (default: the image's)")
    parser.add_argument(
        "--way", default="", metavar="WAY", help="purchase option: on-demand, spot, reservation:ID or capacity-block:ID"
    )
    parser.add_argument("--placement-group", default="", metavar="NAME", help="placement group of the instances")
    parser.add_argument("--root-volume-gib", type=int, default=0, metavar="GIB", help="default: the image's own size")
    parser.add_argument("--key-name", default="", metavar="NAME", help="EC2 key pair for SSH (default: none)")
    parser.add_argument("--user-data", type=Path, metavar="FILE", help="user data; an EKS node needs its NodeConfig")
    text = "for a managed node group of EKS: without subnet, instance profile and Spot, which the group sets itself"
    parser.add_argument("--node-group", action="store_true", help=text)
    parser.add_argument(
        "--no-efa", action="store_true", help="one network interface without EFA, on every instance type"
    )
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.cloud import Cloud, launch_templates

    if args.make and args.format == "cloudformation":
        raise UsageError("--make makes the templates through the API", hint="give --format cloudformation to a stack")
    cloud = Cloud(_place(args.where))
    templates = _templates(args, cloud)
    if args.make:
        with progress.stage(f"make launch templates in {cloud.place.region}"):
            templates = [launch_templates.make(cloud, template) for template in templates]
    return Outcome(_text(args, templates), [asdict(template) for template in templates])


def _text(args: argparse.Namespace, templates: Sequence[launch_templates.LaunchTemplate]) -> str:
    from gpu_ami.cloud import launch_templates

    if args.make:
        return "\n".join(f"{one.name}: {one.id}, version {one.version}" for one in templates)
    if args.format == "cloudformation":
        return json.dumps(launch_templates.cloudformation(templates), indent=2)
    documents = [template.input() for template in templates]
    return json.dumps(documents[0] if len(documents) == 1 else documents, indent=2)


def _place(where: Path | None) -> Place:
    """The place of --where, or the local region if it is up. UsageError: neither."""
    from gpu_ami.region import running_place

    place = running_place(where)
    if place is None:
        raise UsageError("the local region is not up", hint="--where FILE names a place on AWS; or: gpu-ami region up")
    return place


def _templates(args: argparse.Namespace, cloud: Cloud) -> list[launch_templates.LaunchTemplate]:
    from gpu_ami.cloud import Launch, launch_templates
    from gpu_ami.cloud import place as places

    if args.way and not re.fullmatch(places.WAY_PATTERN, args.way):
        ways = "on-demand, spot, reservation:cr-0123456789abcdef0 or capacity-block:cr-0123456789abcdef0"
        raise UsageError(f"--way: expected {ways}, got {args.way!r}")
    user_data = _read(args.user_data)
    wish = launch_templates.Wish(
        args.key_name, user_data, args.placement_group, args.root_volume_gib, args.way, args.node_group
    )
    ami, name, tags, types = _image(args)
    launches = [
        Launch(ami, instance_type, "", {**cloud.place.tags, **tags}, "", 0 if args.no_efa else efa)
        for instance_type, efa in types.items()
    ]
    return [launch_templates.describe(cloud, args.name or name, launch, wish) for launch in launches]


def _read(path: Path | None) -> str:
    if path is None:
        return ""
    try:
        return read_text(path)
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--user-data: {path}: {error}") from error


def _image(args: argparse.Namespace) -> tuple[str, str, dict[str, str], dict[str, int]]:
    """AMI, name, tags, and instance type → EFA interfaces, of an image's folder or of an AMI alone."""
    if args.image.startswith("ami-"):
        if not args.instance_type:
            raise UsageError(f"{args.image}: --instance-type is missing", hint="an AMI alone names no instance types")
        return args.image, args.image, {}, {name: _efa_of_facts(name) for name in args.instance_type}
    from gpu_ami.build import image
    from gpu_ami.cloud import runs
    from gpu_ami.plan import PLAN_FILE, Plan
    from gpu_ami.validate.machines import launch

    plan = Plan.load(Path(args.image) / PLAN_FILE)
    names = [row["name"] for row in plan.document["instance_types"]]
    planned = {name: launch.efa_interfaces(plan.document, name) for name in names}
    if unknown := [name for name in args.instance_type if name not in planned]:
        raise UsageError(f"--instance-type {unknown[0]}: the plan has {', '.join(planned)}")
    types = {name: planned[name] for name in args.instance_type or planned}
    return image.load(Path(args.image)).ami, plan.image, {runs.TAG_RECIPE: plan.image}, types


def _efa_of_facts(instance_type: str) -> int:
    from gpu_ami.recipes import load_facts

    row = load_facts().instance_types["instance_types"].get(instance_type)
    if row is None:
        raise UsageError(f"--instance-type {instance_type}: no such row in variables/facts/instance_types.yml")
    return int(row["efa_interfaces"])
