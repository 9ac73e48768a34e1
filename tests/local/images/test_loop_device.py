"""A loop device that is set up on an empty file shows what is written to the file afterwards, and goes by itself."""

from __future__ import annotations

import fcntl
import os
import struct
from pathlib import Path

import pytest

from gpu_ami.local.images import spare_disks

MIB = 1 << 20
devices = pytest.mark.skipif(
    os.geteuid() != 0 or not Path("/dev/loop-control").exists(), reason="only root may set up loop devices"
)


def backing(device: Path) -> str:
    """The file behind a loop device; "" for one that is free."""
    path = Path("/sys/block") / device.name / "loop/backing_file"
    return path.read_text().strip() if path.exists() else ""


@devices
def test_it_shows_what_was_written_after_it_was_set_up(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    disk.touch()
    loop = spare_disks.attach(disk, MIB)
    assert loop is not None
    os.read(loop.fileno(), 512)  # as a program of the host may that looks at new devices
    disk.write_bytes(b"a" * MIB + b"b" * MIB)
    loop.refresh()
    (size,) = struct.unpack("Q", fcntl.ioctl(loop.fileno(), 0x80081272, bytes(8)))  # BLKGETSIZE64
    os.lseek(loop.fileno(), 0, os.SEEK_SET)
    assert (size, os.read(loop.fileno(), 4)) == (MIB, b"bbbb")
    os.pwrite(loop.fileno(), b"c" * 4096, 0)
    os.fsync(loop.fileno())
    loop.close()
    assert disk.read_bytes()[MIB : MIB + 5000] == b"c" * 4096 + b"b" * 904


@devices
def test_it_is_free_when_it_is_closed(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    disk.touch()
    loop = spare_disks.attach(disk, MIB)
    assert loop is not None and backing(loop.path) == str(disk)
    loop.close()
    loop.close()
    assert backing(loop.path) != str(disk)


def test_a_host_without_them_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spare_disks, "_CONTROL", tmp_path / "loop-control")
    (tmp_path / "disk.raw").touch()
    assert spare_disks.attach(tmp_path / "disk.raw", MIB) is None


@devices
def test_a_device_that_another_program_took_first_is_left_to_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "taken.raw").touch()
    (tmp_path / "disk.raw").touch()
    taken = spare_disks.attach(tmp_path / "taken.raw", 0)
    assert taken is not None
    find, tries = spare_disks._open_free, []

    def open_free() -> spare_disks.LoopDevice:
        tries.append(1)
        if len(tries) > 1:
            return find()
        return spare_disks.LoopDevice(taken.path, os.open(taken.path, os.O_RDWR))

    monkeypatch.setattr(spare_disks, "_open_free", open_free)
    loop = spare_disks.attach(tmp_path / "disk.raw", 0)
    assert loop is not None and loop.path != taken.path and len(tries) == 2
    loop.close()
    taken.close()
