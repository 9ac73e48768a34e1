"""Copies of images' disks that are begun before the launch that takes them.

A build says which image it starts from while Packer starts (control.py, "expect"): the copy takes as long as that. A
launch that nobody has announced copies for itself. A sandbox mounts the copy's loop device, which is set up while the
copy is empty (loop_device.py); a machine needs none.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from gpu_ami.errors import GpuAmiError
from gpu_ami.local import space
from gpu_ami.local.images import base_image, loop_device
from gpu_ami.local.images.store import fill_disk

_MOST = 2  # copies that nobody has taken; the oldest is removed for another


@dataclass(frozen=True)
class SpareDisk:
    """A copy. loop: its partition as a block device, where the host has one."""

    path: Path
    loop: loop_device.LoopDevice | None

    def remove(self) -> None:
        if self.loop:
            self.loop.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


class SpareDisks:
    """The spare disks of a region, in a folder of theirs. submit: of an executor."""

    def __init__(self, folder: Path, submit: Callable[..., Future[SpareDisk]]) -> None:
        self._folder, self._submit = folder, submit
        self._lock = threading.Lock()
        self._begun: dict[str, Future[SpareDisk]] = {}  # by image, the oldest first

    def begin(self, image_id: str, source: Path) -> None:
        """Begins a copy of an image's disk, unless there is one."""
        with self._lock:
            if image_id in self._begun:
                return
            for oldest in list(self._begun)[: len(self._begun) - _MOST + 1]:
                self._begun.pop(oldest).add_done_callback(_remove)
            self._begun[image_id] = self._submit(self._copy, image_id, source)

    def take(self, image_id: str, target: Path) -> SpareDisk | None:
        """Moves the copy of an image's disk to `target`, when it is complete; None if there is none."""
        with self._lock:
            begun = self._begun.pop(image_id, None)
        if begun is None:
            return None
        try:
            spare = begun.result()
        except (OSError, GpuAmiError):  # no space for it: the launch says so, if that is still the case
            return None
        spare.path.rename(target)
        return SpareDisk(target, spare.loop)

    def _copy(self, image_id: str, source: Path) -> SpareDisk:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        space.require(self._folder, space.allocated(source) + space.BOOT_BYTES, f"a copy of the disk of {image_id}")
        path = self._folder / f"{image_id}.raw"
        path.unlink(missing_ok=True)
        path.touch()
        spare = SpareDisk(path, loop_device.attach(path, base_image.PARTITION_OFFSET))
        try:
            fill_disk(source, path)
        except BaseException:
            spare.remove()
            raise
        return spare


def _remove(copied: Future[SpareDisk]) -> None:
    with contextlib.suppress(OSError, GpuAmiError):
        copied.result().remove()
