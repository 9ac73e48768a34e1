"""`gpu-ami observe`: what is in an image or on a machine that others built, and whether it fits together."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome, options
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.observe import Finding, Observation
    from gpu_ami.progress import Progress

_EPILOG = """\
Lists every component with its version, where it was read, and whether its sources agree; findings, each with its
source; the CloudWatch agent's effective configuration; and what captures Xids. Nothing is changed. Writes into OUT:
observation.json, plan.json (origin: observed; `gpu-ami validate OUT --host …` checks with it), and recipe.yml, the
nearest recipe by which gpu-ami would rebuild the image.

--ami boots the AMI once; where the place keeps images as files (the local region), its files are read instead, and
nothing is booted unless --boot. --root runs no program of the image.

exit codes: 0 read, whatever was found · 1 with --strict: a finding is a problem · 2 usage · 4 cloud or machine

examples:
  gpu-ami observe --ami ami-0123456789abcdef0 --where aws.yml
  gpu-ami observe --manifest packer-manifest.json --where aws.yml     the AMI that a Packer build wrote
  gpu-ami observe --host ssh://admin@10.0.0.7 -i key.pem
  sudo gpu-ami observe --host local://                                on the machine itself
  sudo gpu-ami observe --root disk.raw                                a raw disk image or a mounted tree
  gpu-ami observe --root /mnt --against variables/recipes/debian12-gpu.yml
  gpu-ami observe --ami ami-0123456789abcdef0 --where aws.yml --against version-info.json     what EKS says is in it
"""


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "observe", help="list the contents of an image that others built, and conflicts between them", epilog=_EPILOG
    )
    parser.add_argument(
        "-o", "--out", type=options.output_folder, metavar="OUT", help="output folder (default: out/observed)"
    )
    parser.add_argument("--ami", type=options.ami_id, metavar="AMI", help="an AMI of the place")
    options.add_manifest(parser)
    parser.add_argument("--host", metavar="URL", help="a running machine: [ssh://]user@address[:port], or local://")
    parser.add_argument("--root", type=Path, metavar="PATH", help="image files: a mounted tree or a raw disk image")
    parser.add_argument("--read", type=Path, metavar="FILE", help="an observation.json that was read before")
    parser.add_argument("--boot", action="store_true", help="boot the AMI even where its files can be read")
    options.add_identity(parser)
    options.add_where(parser)
    options.add_instance_types(parser, "type that rules are judged for, and that --ami boots (repeatable)")
    options.add_deadlines(parser)
    text = (
        "list differences from a recipe's promises, or from a publisher's list (EKS version-info.json, ECS parameter)"
    )
    parser.add_argument("--against", type=Path, metavar="FILE", help=text)
    parser.add_argument("--strict", action="store_true", help="exit 1 if a finding is a problem")
    parser.set_defaults(execute=execute)


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami import observe
    from gpu_ami.recipes import load_facts

    ami = options.named_ami(args)
    if sum(map(bool, (args.host, ami, args.root, args.read))) != 1:
        raise UsageError(
            "expected one of --ami, --manifest, --host, --root and --read",
            hint="--ami boots an AMI once, --host reads a running machine (local://: this one), --root reads files",
        )
    facts = load_facts()
    observation = _read(args, ami, progress)
    types = observe.instance_types(observation, facts, args.instance_type)
    found = observe.findings_of(observation, facts, observe.context_of(observation, facts, types))
    differences = _against(observation, args.against) if args.against else []
    named = args.root.resolve().name if args.root else args.read.stem if args.read else args.host
    image = ami or image_name(named)
    out = args.out or Path("out") / "observed"
    written = write(observation, out, types, image)
    data = to_json(observation, found, differences)
    shown = observe.text(observation, found, written, differences)
    problems = args.strict and any(one.level is observe.Level.PROBLEM for one in found)
    return Outcome(shown, data, 1 if problems else 0)


def _against(observation: Observation, named: Path) -> list[str]:
    """Differences from a recipe's promises, or from what the publisher of an AMI says is in it (a JSON document)."""
    from gpu_ami import observe
    from gpu_ami.files import read_json
    from gpu_ami.recipes import find_recipe

    if named.suffix == ".json":
        document = read_json(named)
        if document is None:
            raise UsageError(f"--against {named}: no JSON object could be read from it")
        return observe.against_manifest(observation, document)
    return observe.against(observation, find_recipe(named))


def image_name(named: str) -> str:
    """A name for the plan of a host or of files: its letters are those that a recipe's flag may have."""
    import re

    text = named.rpartition("@")[2]
    return re.sub(r"[^a-z0-9.-]+", "-", text.lower()).strip("-.") or "observed"


def to_json(observation: Observation, found: list[Finding], differences: list[str]) -> dict[str, object]:
    """What `--json` prints."""
    return {
        "read_of": observation.document["read_of"],
        "components": [one.to_json() for one in observation.found.values()],
        "absent": observation.absent,
        "findings": [one.to_json() for one in found],
        "differences": differences,
    }


def write(observation: Observation, out: Path, types: list[str], image: str) -> list[str]:
    """observation.json, plan.json and, where the facts know the system, recipe.yml; their paths."""
    from gpu_ami import observe
    from gpu_ami.files import write_json, write_text
    from gpu_ami.plan import PLAN_FILE
    from gpu_ami.recipes import load_facts

    facts = load_facts()
    out.mkdir(parents=True, exist_ok=True)
    write_json(out / observe.OBSERVATION_FILE, observation.to_json())
    plan = observe.observed_plan(observation, facts, types, image)
    write_json(out / PLAN_FILE, plan.document)
    names = [observe.OBSERVATION_FILE, PLAN_FILE]
    if observation.system(facts)[1] is not None:
        write_text(out / observe.RECIPE_FILE, observe.nearest_recipe(observation, facts, types))
        names.append(observe.RECIPE_FILE)
    return [str(out / name) for name in names]


def _read(args: argparse.Namespace, ami: str | None, progress: Progress) -> Observation:
    from gpu_ami import observe
    from gpu_ami.validate import hosts

    if args.root:
        with progress.stage(f"read the files of {args.root}"):
            return observe.read_files(args.root)
    if args.read:
        return observe.load(args.read).named(str(args.read))
    if ami:
        from gpu_ami import pipeline
        from gpu_ami.region import SessionRequest

        request = SessionRequest(args.where, deadlines=options.deadlines(args))
        with pipeline.open_session(request, progress) as session:
            return pipeline.observe_stage(ami, session, args.instance_type, boot=args.boot)
    if args.host == "local://":
        with progress.stage("wait for the boot to end, and read this machine"):
            return observe.read_local()
    options.check_identity(args)
    url = hosts.host_url(args.host)
    hosts.require_reachable(url, args.identity)
    with progress.stage(f"wait for the boot of {url} to end, and read it"):
        return observe.read_host(hosts.ssh_target(url, args.identity))
