"""Copies of images' disks that are begun before the launch that takes them.

A build says which image it starts from while Packer starts (control.py, "expect"): the copy takes as long as that. A
launch that was not announced copies for itself. A sandbox mounts the copy's loop device, which is set up while the
copy is empty; a machine needs none. Measured with the mount option barrier=0, on 2 cores: from launch to login 0.6 s,
before 1.6 to 2.4 s, which is 5 to 9 % of a build of the last layer (19 s).

A loop device is a raw disk as a block device, attached before the disk has content, so that nothing is waited for:
Linux writes all of a file to the host's disk when a loop device is set up on it: half a second to two for the copy of
an image. A file that is still empty has nothing to write. The device is gone with the last of its open descriptors,
also after SIGKILL. Source: Linux 6.18, drivers/block/loop.c, include/uapi/linux/loop.h and fs.h.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import secrets
import struct
import threading
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path

from gpu_ami.errors import GpuAmiError
from localregion import host
from localregion.images import base_image
from localregion.images.store import fill_disk

_GET_FREE, _CONFIGURE, _SET_CAPACITY, _FLUSH = 0x4C82, 0x4C0A, 0x4C07, 0x1261
_AUTOCLEAR = 4
# struct loop_config: fd, block size, loop_info64, reserved. Of loop_info64: three numbers of devices and inodes,
# offset, size limit, number, two of encryption, flags, and names and keys.
_CONFIG = "II" + "QQQ" + "QQ" + "IIII" + "64s64s32s16x" + "64x"
_CONTROL = Path("/dev/loop-control")
_TRIES = 8  # another program may take the free device first


class LoopDevice:
    """/dev/loopN of a disk's partition. `fileno` keeps it: it is closed here, or by the process that was given it."""

    def __init__(self, path: Path, descriptor: int) -> None:
        self.path = path
        self._descriptor = descriptor

    def fileno(self) -> int:
        return self._descriptor

    def refresh(self) -> None:
        """Shows the size and the content that the disk's file has now."""
        fcntl.ioctl(self._descriptor, _SET_CAPACITY)
        fcntl.ioctl(self._descriptor, _FLUSH)  # what the host has read of the device before

    def close(self) -> None:
        """Lets the device go, unless something else has it open or mounted."""
        if self._descriptor >= 0:
            os.close(self._descriptor)
            self._descriptor = -1

    def __del__(self) -> None:
        self.close()  # of a machine that was prepared and never started


def attach(disk: Path, offset: int) -> LoopDevice | None:
    """A device of the disk from `offset` on; None where this host gives none (not root, no device, Linux < 5.8)."""
    with contextlib.suppress(OSError), disk.open("r+b") as file:
        for _ in range(_TRIES):
            device = _open_free()
            config = struct.pack(_CONFIG, file.fileno(), 0, 0, 0, 0, offset, 0, 0, 0, 0, _AUTOCLEAR, b"", b"", b"")
            try:
                fcntl.ioctl(device.fileno(), _CONFIGURE, config)
                return device
            except OSError as error:
                device.close()
                if error.errno != errno.EBUSY:
                    raise
    return None


def _open_free() -> LoopDevice:
    with _CONTROL.open("rb") as control:
        path = Path(f"/dev/loop{fcntl.ioctl(control, _GET_FREE)}")
    return LoopDevice(path, os.open(path, os.O_RDWR | os.O_CLOEXEC))


_MOST = 2  # copies that nobody has taken; the oldest is removed for another


@dataclass(frozen=True)
class SpareDisk:
    """A copy. loop: its partition as a block device, where the host has one."""

    path: Path
    loop: LoopDevice | None

    def remove(self) -> None:
        if self.loop:
            self.loop.close()
        with contextlib.suppress(OSError):
            self.path.unlink()


@dataclass
class _Copy:
    """A copy that has begun. guess: nobody has asked for it yet."""

    guess: bool
    given_up: threading.Event
    future: Future[SpareDisk]

    def give_up(self) -> None:
        """Ends it if it is under way, and removes it."""
        self.given_up.set()
        self.future.add_done_callback(_remove)


class SpareDisks:
    """The spare disks of a region, in a folder of theirs. submit: of an executor."""

    def __init__(self, folder: Path, submit: Callable[..., Future[SpareDisk]]) -> None:
        self._folder, self._submit = folder, submit
        self._lock = threading.Lock()
        self._begun: dict[str, _Copy] = {}  # by image, the oldest first
        self._awaited: list[_Copy] = []  # launches wait for them

    def guess(self, image_id: str, source: Path) -> None:
        """Begins a copy of an image's disk that may be asked for, where it takes no space that a build may need."""
        with contextlib.suppress(OSError):
            needed = host.allocated(source) + host.build_bytes(source)
            if host.free(source.parent) >= needed:
                self._begin(image_id, source, guess=True)

    def begin(self, image_id: str, source: Path) -> None:
        """Begins a copy of an image's disk, unless there is one. Gives up what was guessed, and is of another."""
        with self._lock:
            if image_id in self._begun:
                self._begun[image_id].guess = False
            for other in [other for other, copy in self._begun.items() if copy.guess]:
                self._begun.pop(other).give_up()
        self._begin(image_id, source, guess=False)

    def _begin(self, image_id: str, source: Path, *, guess: bool) -> None:
        with self._lock:
            if image_id in self._begun:
                return
            for oldest in list(self._begun)[: len(self._begun) - _MOST + 1]:
                self._begun.pop(oldest).give_up()
            given_up = threading.Event()
            future = self._submit(self._copy, image_id, source, given_up.is_set)
            self._begun[image_id] = _Copy(guess, given_up, future)

    def take(self, image_id: str, target: Path) -> SpareDisk | None:
        """Moves the copy of an image's disk to `target`, when it is complete; None if there is none.

        CloudError: the region ended meanwhile.
        """
        with self._lock:
            copy = self._begun.pop(image_id, None)
            if copy is None:
                return None
            self._awaited.append(copy)
        try:
            spare = copy.future.result()
        except (OSError, GpuAmiError):  # no space for it: the launch says so, if that is still the case
            if copy.given_up.is_set():
                raise
            return None
        finally:
            with self._lock:
                self._awaited.remove(copy)
        try:
            spare.path.rename(target)
        except OSError:
            spare.remove()
            return None
        return SpareDisk(target, spare.loop)

    def end(self) -> None:
        """Gives up all copies, also those that launches wait for."""
        with self._lock:
            for copy in self._awaited:
                copy.given_up.set()
            while self._begun:
                self._begun.popitem()[1].give_up()

    def _copy(self, image_id: str, source: Path, given_up: Callable[[], bool]) -> SpareDisk:
        self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        host.require(self._folder, host.allocated(source) + host.BOOT_BYTES, f"a copy of the disk of {image_id}")
        # A name of its own: the image may be copied again before this one is taken.
        path = self._folder / f"{image_id}.{secrets.token_hex(4)}.raw"
        path.touch()
        spare = SpareDisk(path, attach(path, base_image.PARTITION_OFFSET))
        try:
            fill_disk(source, path, given_up)
        except BaseException:
            spare.remove()
            raise
        return spare


def _remove(copied: Future[SpareDisk]) -> None:
    with contextlib.suppress(OSError, GpuAmiError):
        copied.result().remove()
