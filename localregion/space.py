"""Free space on the host's disks: checked before a boot and a build, and while a machine is paused for lack of it."""

from __future__ import annotations

import contextlib
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

from gpu_ami.errors import CloudError

_GIB = 1024**3
# What a booted guest may write before its checks end: journal, package lists, logs.
BOOT_BYTES = _GIB // 2
# A build writes packages and modules into the builder's disk, and its image is a copy of that disk.
BUILD_BYTES = 4 * _GIB
# A machine that QEMU stopped goes on when so much is free: enough to not stop again at once.
RESUME_BYTES = _GIB // 4


def allocated(file: Path) -> int:
    """Bytes that a file takes on the disk; a sparse file takes less than its size."""
    return file.stat().st_blocks * 512


def build_bytes(source: Path) -> int:
    """Bytes that a build on an image's disk needs: the builder's disk and its image, with what the roles install."""
    return 2 * allocated(source) + BUILD_BYTES


def free(folder: Path) -> int:
    """Bytes that a process without privileges can still write below `folder`."""
    return shutil.disk_usage(folder).free


def require(folder: Path, needed: int, purpose: str) -> None:
    """CloudError if fewer than `needed` bytes are free below `folder`."""
    available = free(folder)
    if available < needed:
        raise CloudError(
            f"no space for {purpose}: {gib(needed)} needed in {folder}, {gib(available)} free",
            hint="free space there, or set GPU_AMI_HOME to a folder on a larger disk",
        )


def require_for_build(images: Path, source: Path, purpose: str, spare: Path) -> None:
    """CloudError if the folder of images has no space for a build on the disk `source`. It says what images take.

    spare: folder of copies that the build takes as its disk, or that are given up for it.
    """
    copied = _total(spare.glob("*.raw"))
    try:
        require(images, build_bytes(source) - copied, purpose)
    except CloudError as error:
        disks = list(images.glob("*/disk.raw"))
        if not disks:
            raise
        raise CloudError(
            error.message,
            hint=f"{len(disks)} images take {gib(_total(disks))} there: gpu-ami region down, and remove "
            "the folders of images that nobody needs; or set GPU_AMI_HOME to a folder on a larger disk",
        ) from error


def _total(files: Iterable[Path]) -> int:
    """Bytes that files take on the disk; one that is removed meanwhile takes none."""
    total = 0
    for file in files:
        with contextlib.suppress(FileNotFoundError):
            total += allocated(file)
    return total


def require_writable(folder: Path) -> None:
    """Makes the folder, private to its owner. CloudError if it cannot be made or written."""
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(13, "Permission denied")
    except OSError as error:
        raise CloudError(
            f"cannot write to the state folder {folder}: {error.strerror}",
            hint="make it writable, or set GPU_AMI_HOME to another folder",
        ) from error


def gib(count: int) -> str:
    return f"{count / _GIB:.1f} GiB"
