"""Copies of images' disks that are begun before the launch that takes them.

A build says which image it starts from while Packer starts (control.py, "expect"): the copy takes as long as that. A
launch that nobody has announced copies for itself.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from gpu_ami.errors import GpuAmiError
from gpu_ami.local import space
from gpu_ami.local.images.store import copy_disk

_MOST = 2  # copies that nobody has taken; the oldest is removed for another


class SpareDisks:
    """The spare disks of a region, in a folder of theirs. submit: of an executor."""

    def __init__(self, folder: Path, submit: Callable[..., Future[Path]]) -> None:
        self._folder, self._submit = folder, submit
        self._lock = threading.Lock()
        self._begun: dict[str, Future[Path]] = {}  # by image, the oldest first

    def begin(self, image_id: str, source: Path) -> None:
        """Begins a copy of an image's disk, unless there is one."""
        with self._lock:
            if image_id in self._begun:
                return
            for oldest in list(self._begun)[: len(self._begun) - _MOST + 1]:
                self._begun.pop(oldest).add_done_callback(_remove)
            self._begun[image_id] = self._submit(self._copy, image_id, source)

    def take(self, image_id: str, target: Path) -> bool:
        """Moves the copy of an image's disk to `target`, when it is complete; False if there is none."""
        with self._lock:
            begun = self._begun.pop(image_id, None)
        if begun is None:
            return False
        try:
            begun.result().rename(target)
        except (OSError, GpuAmiError):  # no space for it: the launch says so, if that is still the case
            return False
        return True

    def _copy(self, image_id: str, source: Path) -> Path:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        space.require(self._folder, space.allocated(source) + space.BOOT_BYTES, f"a copy of the disk of {image_id}")
        spare = self._folder / f"{image_id}.raw"
        copy_disk(source, spare)
        with spare.open("rb") as written:
            os.fsync(written.fileno())  # a loop device on it would wait for that
        return spare


def _remove(copied: Future[Path]) -> None:
    with contextlib.suppress(OSError, GpuAmiError):
        copied.result().unlink()
