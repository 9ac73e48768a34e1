"""Runs commands in the files of an image (tier T0): `image://PATH`, a mounted tree or a raw disk image.

The image is not booted and not changed: it is mounted read-only in a cage (cage.py), which ends with the command. Its
programs cannot reach this machine's files, processes, network or kernel settings. The kernel's file
system drivers do read a raw disk image.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
import struct
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from validator.transport import cage
from validator.transport.budget import Budget
from validator.transport.errors import TransportFault

_SECTOR = 512
# Bytes of an entry of a GPT, 128 · 2ⁿ by UEFI, and the sector below which the entries begin: any header says any.
_GPT_ENTRY, _LARGEST_GPT_ENTRY, _LARGEST_GPT_START = 128, 4096, 1 << 31
_ENVIRONMENT = {
    "PATH": "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
    "HOME": "/root",
    "LC_ALL": "C.UTF-8",
    "TMPDIR": "/dev/shm",
}


_EXPECTED = "name a mounted tree or a raw disk image"
_CONVERT = "qemu-img convert -O raw IMAGE disk.raw"


@dataclass(frozen=True)
class _Magic:
    """Bytes at an offset, and what they show. hint: what to do with it, where it is no file system of Linux."""

    offset: int
    magic: bytes
    name: str
    hint: str = ""


_UNPACK = "unpack it, and name the folder or the raw disk image in it"
_OPEN = "open it, mount its root file system, and name the folder"
# What is no raw disk, by its first bytes (file(1)'s magic).
_FILES = (
    _Magic(0, b"QFI\xfb", "a qcow2 image", _CONVERT),
    _Magic(0, b"KDMV", "a VMDK image", _CONVERT),
    _Magic(0, b"# Disk DescriptorFile", "a VMDK descriptor", _CONVERT),
    _Magic(0, b"vhdxfile", "a VHDX image", _CONVERT),
    _Magic(0, b"conectix", "a dynamic VHD image", _CONVERT),
    _Magic(257, b"ustar", "a tar archive (OVA, docker save)", _UNPACK),
    _Magic(0, b"\x1f\x8b", "a gzip file", _UNPACK),
    _Magic(0, b"\xfd7zXZ", "an xz file", _UNPACK),
    _Magic(0, b"\x28\xb5\x2f\xfd", "a zstd file", _UNPACK),
    _Magic(0, b"BZh", "a bzip2 file", _UNPACK),
    _Magic(0, b"PK\x03\x04", "a zip archive", _UNPACK),
    _Magic(0, b"<", "a text of XML (OVF)", "name the raw disk image that it describes"),
    _Magic(0, b"{", "a text of JSON", "--read takes an observation.json, --manifest that of Packer"),
    _Magic(0, b"\x7fELF", "a program", _EXPECTED),
)
_OF_LINUX = ("ext4", "XFS", "btrfs", "squashfs", "EROFS", "F2FS")
# What a partition has; blkid(8) knows more.
_CONTENTS = (
    _Magic(0x438, b"\x53\xef", "ext4"),
    _Magic(0, b"XFSB", "XFS"),
    _Magic(0x10040, b"_BHRfS_M", "btrfs"),
    _Magic(0, b"hsqs", "squashfs"),
    _Magic(0x400, b"\xe2\xe1\xf5\xe0", "EROFS"),
    _Magic(0x400, b"\x10\x20\xf5\xf2", "F2FS"),
    _Magic(0, b"LUKS\xba\xbe", "LUKS (encrypted)", f"cryptsetup open: {_OPEN}"),
    _Magic(0x218, b"LVM2 001", "LVM", f"vgchange -ay: {_OPEN}"),
    _Magic(0x1000, b"\xfc\x4e\x2b\xa9", "RAID (md)", f"mdadm --assemble: {_OPEN}"),
    _Magic(3, b"NTFS    ", "NTFS (Windows)", "gpu-ami reads images of Linux"),
    _Magic(0xFF6, b"SWAPSPACE2", "swap"),
    _Magic(0x8001, b"CD001", "ISO 9660", "name the disk that is installed with it"),
    _Magic(0x36, b"FAT", "FAT"),
    _Magic(0x52, b"FAT32", "FAT"),
)


@dataclass(frozen=True)
class _Partition:
    """A partition of a disk, in bytes. number: 0: the disk has no partition table."""

    number: int
    offset: int
    size: int
    content: str

    def __str__(self) -> str:
        name = f"partition {self.number}" if self.number else "no partition table"
        return f"{name} ({_shown(self.size)}): {self.content or 'unknown content'}"


class ImageUnusable(TransportFault):
    """The image cannot be used: it does not exist, the caller is not root, or it has another architecture."""

    kind = "image"


@dataclass(frozen=True)
class Image:
    """The path of an image: the root of a mounted tree, or a raw disk image."""

    path: Path
    user: str = "root"

    @property
    def name(self) -> str:
        return f"image {self.path}"


class Channel:
    """A program in the image. Its input and output use a socket, its standard error a file."""

    def __init__(self, sock: socket.socket, process: subprocess.Popen[bytes], errors: IO[bytes]) -> None:
        self.settimeout, self.sendall, self.send, self.recv = sock.settimeout, sock.sendall, sock.send, sock.recv
        self._sock, self._process, self._errors = sock, process, errors

    def recv_stderr_ready(self) -> bool:
        return os.fstat(self._errors.fileno()).st_size > 0

    def recv_stderr(self, most: int) -> bytes:
        self._errors.seek(0)
        return self._errors.read(most)

    def close(self) -> None:
        """Ends the program and its namespaces."""
        self._sock.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._errors.close()


class Entered:
    """An image in which programs can run; used by `validator/transport/shell.py` instead of a Connection."""

    def __init__(self, target: Image, offset: int | None, budget: Budget | None = None) -> None:
        self.target = target
        self.execs = 0
        self.alive = True
        self.budget = budget or Budget()
        self.transport = self
        self._offset = offset
        self._mount = tempfile.mkdtemp(prefix="gpu-ami-image-")
        self._channels: list[Channel] = []

    def open(self, command: str) -> Channel:
        local, child = socket.socketpair()
        errors = tempfile.TemporaryFile()  # noqa: SIM115 (the channel closes it)
        words = cage.command("files", self._mount, ["/bin/sh", "-c", command], str(self.target.path), self._offset)
        with child:
            process = subprocess.Popen(
                words,
                stdin=child.fileno(), stdout=child.fileno(), stderr=errors, env=_ENVIRONMENT, start_new_session=True,
                umask=0o022,  # of a login, not this process's
            )  # fmt: skip
        self.execs += 1
        self._channels.append(Channel(local, process, errors))
        return self._channels[-1]

    def get_exception(self) -> BaseException | None:
        return None

    def close(self) -> None:
        self.alive = False
        for channel in self._channels:
            channel.close()
        self._channels.clear()
        shutil.rmtree(self._mount, ignore_errors=True)


def enter(image: Image, budget: Budget | None = None) -> Entered:
    """Checks once that commands can run in the image. ImageUnusable says why not."""
    path = image.path
    if not path.exists():
        raise ImageUnusable(f"{path}: no such file or directory", _EXPECTED)
    if not (path.is_dir() or path.is_file() or path.is_block_device()):
        raise ImageUnusable(f"{path}: neither a folder nor a disk", _EXPECTED)
    if os.geteuid() != 0:
        raise ImageUnusable(f"{path} can only be entered by root (mounts, namespaces)", "run it with sudo")
    if shutil.which("mount", path=_ENVIRONMENT["PATH"]) is None:
        raise ImageUnusable("mount is not installed", "apt-get install mount")
    offsets: list[int | None] = [None] if path.is_dir() else [*file_systems(path)]
    first, *others = offsets
    try:
        return _entered(image, first, budget)
    except ImageUnusable:
        for offset in others:  # the largest file system may have data alone
            with contextlib.suppress(ImageUnusable):
                return _entered(image, offset, budget)
        raise


def _entered(image: Image, offset: int | None, budget: Budget | None) -> Entered:
    entered = Entered(image, offset, budget)
    channel = entered.open("exec true")
    channel.settimeout(30)
    try:
        channel.recv(1)  # b"" when the program has ended
    except TimeoutError as error:
        entered.close()
        raise ImageUnusable(f"{image.path}: its /bin/sh did not answer within 30 s") from error
    channel._process.wait(5)
    if channel._process.returncode != 0:
        lines = channel.recv_stderr(4096).decode(errors="replace").strip().splitlines()[:1] or ["no output"]
        entered.close()
        raise ImageUnusable(f"{image.path} cannot be entered: {lines[0].removeprefix('cage: ')}", hint(lines[0]))
    return entered


def hint(error: str) -> str:
    if "Exec format error" in error:
        return "the image has another architecture than this machine"
    if "not permitted" in error or "denied" in error:
        return "namespaces and mounts are needed: run it on the machine itself, or in a container with --privileged"
    return "expected the root of a system, or a raw disk image with a partition that is one"


def file_systems(disk: Path) -> list[int]:
    """The offsets of a raw disk's file systems of Linux in bytes, the largest first; 0 without a partition table.

    ImageUnusable says what is on the disk instead. Only its first bytes, and those of its partitions, are read.
    """
    with disk.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        if not size:
            raise ImageUnusable(f"{disk}: an empty file", _EXPECTED)
        if foreign := next((row for row in _FILES if _has(file, 0, row)), None):
            raise ImageUnusable(f"{disk}: {foreign.name}, expected a raw disk image", foreign.hint)
        partitions = _partitions(file)
        parts = [_Partition(*row, content=_content(file, row[1])) for row in partitions]
        if not any(part.content for part in parts) and (not parts or _content(file, 0)):
            parts = [_Partition(0, 0, size, _content(file, 0))]  # a boot sector looks like a partition table
    usable = [part for part in sorted(parts, key=lambda part: -part.size) if part.content in _OF_LINUX]
    if not usable:
        found = "; ".join(str(part) for part in parts)
        hint = next((row.hint for part in parts for row in _CONTENTS if row.name == part.content and row.hint), "")
        raise ImageUnusable(f"{disk}: expected a file system of Linux, got {found}", hint or _EXPECTED)
    cut_off = [part for part in usable if part.offset + part.size > size]
    if len(cut_off) == len(usable):
        end = cut_off[0].offset + cut_off[0].size
        raise ImageUnusable(
            f"{disk}: {cut_off[0]} ends at byte {end}, and the file at byte {size}", "it is cut off: copy it again"
        )
    return [part.offset for part in usable if part not in cut_off]


def _shown(size: int) -> str:
    units = ("bytes", "KiB", "MiB", "GiB")
    power = next((n for n in reversed(range(len(units))) if size >= 1 << 10 * n), 0)
    return f"{size / (1 << 10 * power):.3g} {units[power]}"


def _has(file: IO[bytes], start: int, row: _Magic) -> bool:
    file.seek(start + row.offset)
    return file.read(len(row.magic)) == row.magic


def _content(file: IO[bytes], start: int) -> str:
    return next((row.name for row in _CONTENTS if _has(file, start, row)), "")


def _partitions(file: IO[bytes]) -> list[tuple[int, int, int]]:
    """Number, start and size of each partition in bytes (GPT or MBR); none without a partition table."""
    file.seek(0)
    first = file.read(_SECTOR)
    if len(first) < _SECTOR or first[510:] != b"\x55\xaa":
        return []
    rows = [struct.unpack_from("<4xB3xII", first, 446 + 16 * number) for number in range(4)]
    found = [(number, start, size) for number, (kind, start, size) in enumerate(rows, 1) if kind not in (0, 0xEE)]
    if any(kind == 0xEE for kind, _, _ in rows):
        found = _gpt(file)
    return [(number, start * _SECTOR, size * _SECTOR) for number, start, size in found]


def _gpt(file: IO[bytes]) -> list[tuple[int, int, int]]:
    """Number, start and size of each partition, in sectors; UEFI 2.10, 5.3."""
    file.seek(_SECTOR)
    header = file.read(_SECTOR)
    if not header.startswith(b"EFI PART"):
        return []
    table, count, size = struct.unpack_from("<QII", header, 72)
    if not (_GPT_ENTRY <= size <= _LARGEST_GPT_ENTRY and table < _LARGEST_GPT_START):
        return []
    file.seek(table * _SECTOR)
    entries = [file.read(size) for _ in range(min(count, 128))]
    spans = [
        (number, *struct.unpack_from("<QQ", entry, 32))
        for number, entry in enumerate(entries, 1)
        if len(entry) == size and entry[:16].strip(b"\0")
    ]
    return [(number, start, last - start + 1) for number, start, last in spans]
