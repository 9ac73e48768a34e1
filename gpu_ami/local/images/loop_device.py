"""A raw disk as a block device, attached before the disk has content, so that nothing is waited for.

Linux writes all of a file to the host's disk when a loop device is set up on it: half a second to two for the copy of
an image. A file that is still empty has nothing to write. The device is gone with the last of its open descriptors,
also after SIGKILL. Source: Linux 6.18, drivers/block/loop.c, include/uapi/linux/loop.h and fs.h.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import struct
from pathlib import Path

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
