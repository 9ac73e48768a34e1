"""An AMI of the local region made of a tree, such as the files of a sandbox in which roles were run.

A build under emulation compiles the driver's module for half an hour; a sandbox does it natively. What the sandbox
leaves is written to a disk here, and boots as any AMI.
"""

from __future__ import annotations

import hashlib
from datetime import UTC, datetime
from pathlib import Path

from gpu_ami.progress import Progress
from localregion import space
from localregion.architectures import DEFAULT
from localregion.images import base_image, source_ami
from localregion.images.rootfs_layers import Tree, require_root
from localregion.state import ImageRecord, Layout, save_image


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
        space.require(layout.images, space.BUILD_BYTES, f"the disk of {record.id}")
        source_ami.write_disk(Tree((tree,)), work, architecture)
        folder.mkdir(mode=0o700)
        (work / "disk.raw").rename(folder / "disk.raw")
    save_image(layout, record)
    return record.id
