"""`gpu-ami region`: the local region, by hand."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Mapping
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.commands import Outcome
from gpu_ami.commands.options import CONDITIONS_HELP
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from gpu_ami.progress import Progress
    from localregion.control import InstanceStatus
    from localregion.region import RegionReport

_EPILOG = """\
The local region provides the APIs of EC2, CloudWatch, Logs, SSM, IAM, STS, ECS and EKS on the loopback interface, with
a QEMU machine for every running instance. prove, build and validate start it if it is not running, and stop it when
they end; `region up` keeps it running, so that the next command starts at once and other tools (aws, boto3, packer) can
use it.

examples:
  gpu-ami region up                     `region status` then shows how the AWS CLI reaches it
  gpu-ami region up --plan out/debian12-gpu/plan.json    with what that plan needs, for Packer by hand
  gpu-ami region status
  gpu-ami region console i-…            output of the instance on its serial port
  gpu-ami region ssh i-…                a shell on an instance of an active run
  gpu-ami region ssh i-… dmesg -T       one command on it
  gpu-ami region user-data > ssm.sh     run-instances --user-data file://ssm.sh: Systems Manager manages the instance
  gpu-ami region down                   terminates every instance; images are kept
  gpu-ami region prune --dry-run        lists unused images, base images and layers
  gpu-ami region prune --keep 2 --older-than 7d
"""
_PRUNE_EPILOG = """\
An image is kept while an instance was launched from it, the run that created it has not ended, a build.json,
report.json, certificate.json or publication.json names it (in the folders that gpu-ami wrote, in ./out/* and in
--refer), or it is one of the --keep newest of its recipe. An image whose folder is not known (built with Packer by
hand) is removed only with --older-than. Base images and their layers are kept for a week after their last use.

If images use more than GPU_AMI_IMAGES_SHARE percent of the disk (default: 25; 0: disabled), a build removes the oldest
unused ones until they use less.
"""
_KEY_FILE_TAG = "gpu-ami:key-file"


def register(subparsers: Any) -> None:
    parser = subparsers.add_parser(
        "region",
        help="the local region: up, down, status, ssh, console, user-data, prune",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    verbs = parser.add_subparsers(
        dest="verb", metavar="VERB", required=True, help="details: gpu-ami region VERB --help"
    )
    up = verbs.add_parser("up", help="start the region; it runs until `region down`")
    plans = "a plan.json whose source AMI and packages it needs (repeatable; build and prove do this themselves)"
    up.add_argument("--plan", type=Path, action="append", default=[], metavar="FILE", help=plans)
    up.add_argument("--conditions", default="", metavar="NAME[:SEED]", help=CONDITIONS_HELP)
    verbs.add_parser("down", help="stop the region and terminate its instances; images are kept")
    verbs.add_parser("status", help="instances, images, endpoint and credentials")
    console = verbs.add_parser("console", help="an instance's serial console")
    console.add_argument("instance", metavar="INSTANCE", help="i-…")
    agent = "user data that puts the SSM Agent (a replica) on an instance of the local region (docs/fleet.md)"
    verbs.add_parser("user-data", help=agent)
    ssh = verbs.add_parser("ssh", help="a shell, or a command, on an instance")
    ssh.add_argument("instance", metavar="INSTANCE", help="i-…")
    ssh.add_argument("--user", default="admin", help="default: %(default)s")
    ssh.add_argument("--identity", type=Path, metavar="FILE", help="private key (default: that of the instance's run)")
    # As with ssh itself: options before the instance, everything after it is the command.
    ssh.add_argument("remote", nargs=argparse.REMAINDER, metavar="COMMAND", help="run this instead of a shell")
    prune = verbs.add_parser(
        "prune",
        help="remove unused images, base images and layers",
        description="Removes unused files from the state folder of the local region, and lists them.",
        epilog=_PRUNE_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    prune.add_argument(
        "--keep",
        type=_count,
        default=1,
        metavar="N",
        help="keep the N newest unreferenced images of each recipe (default: %(default)s)",
    )
    prune.add_argument(
        "--older-than",
        type=_age,
        default=timedelta(),
        metavar="AGE",
        help="only images of at least this age: 12h, 7d, 2w (default: any age)",
    )
    refer = "an output folder, or a folder of output folders, whose files may name images (repeatable)"
    prune.add_argument("--refer", type=Path, action="append", default=[], metavar="DIR", help=refer)
    prune.add_argument(
        "-n", "--dry-run", action="store_true", help="print what would be removed, and why the rest is kept"
    )
    parser.set_defaults(execute=execute)


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number of images like 2")
    return int(text)


def _age(text: str) -> timedelta:
    units = {"h": "hours", "d": "days", "w": "weeks"}
    match = re.fullmatch(r"(\d{1,5})([hdw])", text)
    if not match:
        raise argparse.ArgumentTypeError(f"{text!r}, expected a number and a unit, like 12h, 7d or 2w")
    return timedelta(**{units[match[2]]: int(match[1])})


def execute(args: argparse.Namespace, progress: Progress) -> Outcome:
    verbs = {
        "up": _up,
        "down": _down,
        "status": region_status,
        "console": _console,
        "user-data": _user_data,
        "ssh": _ssh,
        "prune": _prune,
    }
    return verbs[args.verb](args, progress)


def _up(args: argparse.Namespace, progress: Progress) -> Outcome:
    from gpu_ami.files import home_dir
    from gpu_ami.plan import Plan
    from localregion import entry, region
    from localregion.images import source_ami
    from localregion.mirror import mirror

    plans = [Plan.load(path).document for path in args.plan]
    for planned in [*plans, None]:
        mirror.ensure(home_dir(), plan=planned, progress=progress)
    entry.require_extra()
    place = region.up(embedded=False, progress=progress, conditions=args.conditions)
    for plan in plans:
        region.publish_source_ami(plan, progress=progress)
    if not plans:
        region.publish_source_ami(source_ami.DEBIAN, progress=progress)
    for path in args.plan:  # a plan made before the region was up knows no endpoint of it
        Plan.load(path).write(path.parent, place)
    return region_status(args, progress)


def _down(_args: argparse.Namespace, _progress: Progress) -> Outcome:
    from localregion import region

    was_there = region.down()
    return Outcome("the local region is down" if was_there else "the local region was not up", {"was_up": was_there})


def region_status(_args: argparse.Namespace, _progress: Progress) -> Outcome:
    """Print whether the region is up and what its folder holds."""
    from gpu_ami.files import home_dir
    from localregion import housekeeping, region

    status = region.status()
    rooms: dict[str, dict[str, int]] = {}
    for item in housekeeping.examine(home_dir()):
        room = rooms.setdefault(item.kind, {"count": 0, "bytes": 0})
        room["count"] += 1
        room["bytes"] += item.bytes
    return Outcome("\n".join([*describe(status), *_describe_space(rooms)]), {**status, "space": rooms})


def _describe_space(rooms: Mapping[str, Mapping[str, int]]) -> list[str]:
    from localregion import host

    lines = []
    for kind, room in rooms.items():
        count = f" ({room['count']})" if room["count"] > 1 else ""
        lines.append(f"disk     {host.gib(room['bytes']):>9}  {kind}{count}")
    return lines


def _prune(args: argparse.Namespace, progress: Progress) -> Outcome:
    from dataclasses import asdict

    from gpu_ami.files import home_dir
    from localregion import host, housekeeping

    for folder in args.refer:
        if not folder.is_dir():
            raise UsageError(
                f"--refer {folder}: not a folder", hint="name the folder of build.json, or the one above it"
            )
    folders = [path for root in [Path("out"), *args.refer] for path in (root, *sorted(root.glob("*")))]
    policy = housekeeping.Policy(args.keep, args.older_than, folders)
    removed = housekeeping.prune(home_dir(), policy, progress, dry_run=args.dry_run)
    gone = [item for item in removed if not item.error]
    names = {item.id for item in gone}
    stays = [item for item in housekeeping.examine(home_dir(), policy) if item.id not in names]
    verb = "would remove" if args.dry_run else "removed"
    lines = [f"{verb} {item.kind} {item.id}: {host.gib(item.bytes)}, {item.text}" for item in gone]
    lines += [f"cannot remove {item.kind} {item.id}: {item.error}" for item in removed if item.error]
    lines += [
        f"{'stays' if args.dry_run else 'kept'}: {item.kind} {item.id}: {host.gib(item.bytes)}, {item.needed_by}"
        for item in stays
        if item.needed_by
    ]
    lines.append(f"{verb} {host.gib(housekeeping.total(gone))}" if gone else "nothing to remove")
    data = {"removed": [asdict(item) for item in removed], "kept": [asdict(item) for item in stays]}
    return Outcome("\n".join(lines), data, 4 if len(gone) < len(removed) else 0)


def _refused(status: RegionReport) -> str:
    counts = ", ".join(f"{code} {count}" for code, count in sorted(status.get("refused", {}).items()))
    return f"; calls refused so far: {counts}" if counts else ""


def describe(status: RegionReport) -> list[str]:
    """`localregion.region.status` as lines."""
    if status["up"]:
        kept = "until `gpu-ami region down`" if status["persistent"] else "while a command uses it"
        lines = [
            f"up {kept}, in {status['home']}"
            + (f", conditions {status['conditions']}{_refused(status)}" if status.get("conditions") else ""),
            f"  endpoint {status['endpoint']}  subnet {status['subnet_id']}  ssh port {status['ssh_port']}",
            f"  export AWS_ENDPOINT_URL={status['endpoint']} AWS_DEFAULT_REGION={status['region']}"
            " AWS_ACCESS_KEY_ID=local AWS_SECRET_ACCESS_KEY=local",
        ]
    else:
        lines = [f"down; home {status['home']}"]
    if status["acceleration"]:
        lines.append(f"machines run by {status['acceleration']}")
    for row in status["instances"]:
        lines.append(f"instance {row['id']}  {row['state']:13}  {row['type']:14}  {row['address']}  {row['image']}")
        lines += [f"         {row['problem']}"] if row.get("problem") else []
    for image in status["images"]:
        lines.append(f"image    {image['id']}  {image['created'][:16]}  {image['name']}")
    return lines


def _console(args: argparse.Namespace, _progress: Progress) -> Outcome:
    from localregion import region

    text = region.console(None, args.instance)
    return Outcome(text, {"instance": args.instance, "console": text})


def _user_data(_args: argparse.Namespace, _progress: Progress) -> Outcome:
    from localregion.images import source_ami

    text = source_ami.user_data()
    return Outcome(text, {"user_data": text})


def _ssh(args: argparse.Namespace, _progress: Progress) -> Outcome:
    from gpu_ami.files import home_dir
    from localregion import region

    status = region.status()
    running = {row["id"]: row for row in status["instances"] if row["state"] == "running"}
    if args.instance not in running:
        known = f"running: {', '.join(running)}" if running else "no instance is running"
        raise UsageError(f"{args.instance} is not a running instance of the local region", hint=known)
    instance = running[args.instance]
    key = args.identity or find_key(instance, home_dir())
    remote = args.remote[1:] if args.remote[:1] == ["--"] else args.remote
    command = ssh_command(instance["address"], status["ssh_port"], args.user, key, remote)
    if args.json or not (remote or sys.stdout.isatty()):
        return Outcome(shlex.join(command), {"command": command})
    # The shell needs this terminal and our place in the process tree: it takes over.
    os.execvp(command[0], command)


def find_key(instance: InstanceStatus, home: Path) -> Path:
    """The private key of the run that launched the instance. UsageError: that run has ended, or it was no run."""
    from gpu_ami.cloud import runs

    tags = instance["tags"]
    candidates = [Path(tags[_KEY_FILE_TAG])] if _KEY_FILE_TAG in tags else []
    candidates += [record.folder / "id_ed25519" for record in runs.records(home) if record.id == tags.get(runs.TAG_RUN)]
    for key in candidates:
        if key.is_file():
            return key
    hint = "name the key that it was launched with: --identity FILE"
    raise UsageError(f"no private key found for {instance['id']}", hint=hint)


def ssh_command(address: str, port: int, user: str, key: Path, remote: list[str]) -> list[str]:
    """ssh to an instance; its host key is new with every instance, so it is not kept."""
    options = {
        "StrictHostKeyChecking": "no",
        "UserKnownHostsFile": "/dev/null",
        "LogLevel": "ERROR",
        "IdentitiesOnly": "yes",
    }
    words = [word for name, value in options.items() for word in ("-o", f"{name}={value}")]
    return ["ssh", *words, "-i", str(key), "-p", str(port), f"{user}@{address}", *remote]
