"""Source AMIs of the local region: the base images that plans build on, registered as AMIs.

A plan finds its source AMI by owner and name filter (or by an SSM parameter); the region registers the base image of
the operating system and node family for this owner, under a name that the filter matches.

User data that puts the replica of the SSM Agent on a machine of the local region.

AWS's own images of Amazon Linux and Ubuntu have the agent; Debian's have not. AWS's user guide ("Manually installing
SSM Agent on EC2 instances for Linux", read 2026-11-23) puts it there by user data, too.

An AMI of the local region made of a tree, such as the files of a sandbox in which roles were run.

A build under emulation compiles the driver's module for half an hour; a sandbox does it natively. What the sandbox
leaves is written to a disk here, and boots as any AMI.
"""

from __future__ import annotations

import hashlib
import os
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TypedDict

from gpu_ami.errors import CloudError, UsageError
from gpu_ami.process import find_tool, run
from gpu_ami.progress import Progress
from localregion import host
from localregion.architectures import ARCHITECTURES, DEFAULT
from localregion.debian import RELEASES
from localregion.images import base_ami_packages, base_image, rootfs_layers
from localregion.images.rootfs_layers import Base, Tree, require_root
from localregion.state import ImageRecord, Layout, save_image
from validator.plan_document import Kernel, Node, OperatingSystem, SourceAmi, root_device

_GIB = 1024**3
# Whose images the alias "amazon" finds: Amazon Linux's account (docs.aws.amazon.com, Amazon Linux 2023 user guide).
_AMAZON = "137112412989"
BASE_SYSTEMS = {
    **{("debian", release.version): system for system, release in RELEASES.items()},
    ("ubuntu", "24.04"): "ubuntu2404",
    ("ubuntu", "22.04"): "ubuntu2204",
    ("amzn", "2023"): "al2023",
}
# $1 layers, $2 mke2fs, $3 UUID, $4 offset in bytes, $5 disk, $6 KiB. The layers are read as one tree.
_DISK_SCRIPT = (
    'set -e; mkdir root none; mount -t overlay tree root -o "ro,lowerdir=$1"; '
    '"$2" -q -t ext4 -L root -U "$3" -d root -O ^metadata_csum '
    '-E "offset=$4,lazy_itable_init=1,lazy_journal_init=1" -F "$5" "$6"k; umount root'
)


class SystemPlan(TypedDict):
    """The sections of a plan that decide which base image it builds on."""

    os: OperatingSystem
    architecture: str
    node: Node
    source_ami: SourceAmi
    kernel: Kernel


# As in a plan for Debian 12; `gpu-ami region up` without a plan registers that image.
DEBIAN: SystemPlan = {
    "os": {
        "id": "debian",
        "version": "12",
        "codename": "bookworm",
        "family": "debian",
        "ssh_user": "admin",
        "python": "3.11",
        "end_of_life": "2028-06-30",
    },
    "architecture": "x86_64",
    "node": {"family": "ec2"},
    "source_ami": {"owner": "136693071363", "name": "debian-12-amd64-*"},
    "kernel": {
        "version": "6.1",
        "package": "linux-image-cloud-amd64",
        "headers": "linux-headers-{release}",
        "hold": ["linux-image-cloud-amd64", "linux-headers-cloud-amd64"],
    },
}


def base_of(plan: SystemPlan) -> Base:
    """The base image that a plan builds on. UsageError: the region has none, with what there is."""
    system, node = plan["os"], plan["node"]
    base_system = BASE_SYSTEMS.get((system["id"], system["version"]), "")
    family = "" if node["family"] == "ec2" else node["family"]
    has_family = not family or (base_system, family) in rootfs_layers.available()
    variant = node.get("variant", "")
    if base_system and has_family and (not variant or variant in rootfs_layers.variants(family)):
        version = node.get("version", "") if family else ""
        known = base_ami_packages.releases(family) if family else []
        if known and version not in known:
            raise UsageError(
                f"the local region has no base image for {family} {version}",
                details=[f"its fact tables have the components of {', '.join(known)}; a site's are not among them"],
                hint="build it on AWS with --where FILE; gpu-ami plan works for it in the local region too",
            )
        base = Base(base_system, family, version, architecture=plan["architecture"], variant=variant)
        return _with_kernel(base, plan)
    described = f"{system['id']} {system['version']} on {plan['architecture']}" + (
        f", node family {family}" * bool(family) + f", variant {variant}" * bool(variant)
    )
    pairs = [f"{name} with {family}" for name, family in rootfs_layers.available()]
    raise UsageError(
        f"the local region has no base image for {described}",
        details=[f"base images ({', '.join(ARCHITECTURES)}): {', '.join([*rootfs_layers.SYSTEMS, *pairs])}"],
        hint="build it on AWS with --where FILE; gpu-ami plan works for it in the local region too",
    )


def _with_kernel(base: Base, plan: SystemPlan) -> Base:
    """With the series of the planned kernel's package, where the AMI's own is another."""
    package = plan["kernel"]["package"]
    if package == base.kernel_package:
        return base
    series = rootfs_layers.kernel_series(base.system)
    packages = {kernel: rootfs_layers.kernel_package(base.system, kernel, base.architecture) for kernel in series}
    named = [kernel for kernel, name in packages.items() if name == package]
    if not named:
        raise UsageError(
            f"no base image of {base.system} has kernel package {package!r}",
            hint=f"known: {', '.join(sorted(set(packages.values())))}",
        )
    return replace(base, kernel=named[0])


def kernel_release(plan: SystemPlan, home: Path, progress: Progress) -> str:
    """What `uname -r` prints on machines of the plan's base image; its tree is made where it is not there."""
    return rootfs_layers.ensure(base_of(plan), home, progress).kernel()


def ensure(plan: SystemPlan, home: Path, progress: Progress) -> tuple[ImageRecord, str]:
    """The AMI that the plan's filter finds, its disk made where it is not there; and the plan's SSM parameter, or "".

    UsageError: no base image for that plan.
    """
    source, base = plan["source_ami"], base_of(plan)
    if "name" not in source:
        raise UsageError(
            f"the plan's source AMI is {source.get('id')}", hint="the local region finds it by owner and name"
        )
    if base == Base(base.system, architecture=base.architecture) and base.system in RELEASES:
        disk = base_image.ensure(home, progress, base.architecture, base.release).path
        digest = base_image.digest(base.architecture, base.release)
    else:
        digest = rootfs_layers.digest(base)
        disk = ensure_disk(base, digest, home, progress)
    return _record(plan, base, disk, digest), source.get("ssm", "")


def _record(plan: SystemPlan, base: Base, disk: Path, digest: str) -> ImageRecord:
    """Its id follows from its name, so that it is the same in every region."""
    source = plan["source_ami"]
    name = source["name"].replace("*", f"gpu-ami-{digest}").replace("?", "0")
    named = hashlib.sha256(name.encode()).hexdigest()
    made = datetime.fromtimestamp(disk.stat().st_mtime, UTC)
    alias = None if source["owner"].isdigit() else source["owner"]
    return ImageRecord(
        id=f"ami-{named[:17]}",
        name=name,
        description=f"base image {base.name} of the local region",
        owner_id=_AMAZON if alias else source["owner"],
        owner_alias=alias,
        architecture=base.architecture,
        root_device_name=root_device(plan["os"]),
        snapshot_id=f"snap-{named[17:34]}",
        size_gib=-(-disk.stat().st_size // _GIB),
        creation_date=f"{made:%Y-%m-%dT%H:%M:%S}.000Z",
        public=True,
        disk=str(disk),
    )


def ensure_disk(base: Base, digest: str, home: Path, progress: Progress) -> Path:
    disk = home / "base" / f"{base.name}-{digest}.raw"
    if not disk.exists():
        tree = rootfs_layers.ensure(base, home, progress)
        with base_image.only_one(home / "base", progress) as folder:
            if not disk.exists():
                with progress.stage(f"base image {base.name}: write the disk"), base_image.scratch(folder) as work:
                    write_disk(tree, work, base.architecture)
                    (work / "disk.raw").rename(disk)
    os.utime(disk)
    return disk


def write_disk(tree: Tree, work: Path, architecture: str = DEFAULT) -> None:
    """Writes `disk.raw` of a tree's layers in the folder `work` (root)."""
    base_image.start_disk(work / "disk.raw")
    for index, layer in enumerate(tree.layers):
        (work / f"layer{index}").symlink_to(layer)
    # overlayfs takes no single layer: the empty folder `none` is below.
    stack = ":".join([*(f"layer{index}" for index in range(len(tree.layers))), "none"])
    mke2fs = find_tool("mke2fs", package="e2fsprogs")
    offset, size = base_image.PARTITION_OFFSET, base_image.DISK_BYTES - base_image.PARTITION_OFFSET
    arguments = ["disk", stack, mke2fs, base_image.root_uuid(architecture), str(offset), "disk.raw", str(size // 1024)]
    unshare = find_tool("unshare", package="util-linux")
    run([unshare, "--mount", "sh", "-c", _DISK_SCRIPT, *arguments], cwd=work, timeout=300, error=CloudError)


_REPLICA = Path(__file__).resolve().parents[1] / "replicas" / "ssm_agent"
_UNIT = "amazon-ssm-agent.service"
MAX_BYTES = 16 * 1024  # EC2 user guide, "Run commands when you launch an EC2 instance": user data before base64


def user_data() -> str:
    """A shell script of cloud-init that installs and starts the agent."""
    program = (_REPLICA / "amazon_ssm_agent.py").read_text(encoding="utf-8")
    unit = (_REPLICA / _UNIT).read_text(encoding="utf-8")
    return (
        "#!/bin/sh\n"
        f"cat >/usr/bin/amazon-ssm-agent <<'END_OF_AGENT'\n{program}END_OF_AGENT\n"
        "chmod 0755 /usr/bin/amazon-ssm-agent\n"
        f"cat >/etc/systemd/system/{_UNIT} <<'END_OF_UNIT'\n{unit}END_OF_UNIT\n"
        f"systemctl daemon-reload && systemctl enable --now {_UNIT}\n"
    )


def save(tree: Path, name: str, home: Path, progress: Progress, architecture: str = DEFAULT) -> str:
    """Keeps the tree as an AMI in a home; the region that is brought up next has it. Returns the AMI's id.

    UsageError unless we are root: the files have many owners. CloudError: no space, or the disk cannot be written.
    """
    from moto.core.models import DEFAULT_ACCOUNT_ID

    require_root("the AMI of a tree")
    layout = Layout(home)
    layout.make()
    now = datetime.now(UTC)
    named = hashlib.sha256(f"{name} {now.isoformat()}".encode()).hexdigest()
    record = ImageRecord(
        id=f"ami-{named[:17]}",
        name=name,
        description="written from a tree of files",
        owner_id=DEFAULT_ACCOUNT_ID,
        architecture=architecture,
        root_device_name="/dev/xvda",
        snapshot_id=f"snap-{named[17:34]}",
        size_gib=base_image.DISK_BYTES // 1024**3,
        creation_date=f"{now:%Y-%m-%dT%H:%M:%S}.000Z",
    )
    folder = layout.image(record.id)
    with progress.stage(f"write the disk of {record.id}"), base_image.scratch(layout.region) as work:
        host.require(layout.images, host.BUILD_BYTES, f"the disk of {record.id}")
        write_disk(Tree((tree,)), work, architecture)
        folder.mkdir(mode=0o700)
        (work / "disk.raw").rename(folder / "disk.raw")
    save_image(layout, record)
    return record.id
