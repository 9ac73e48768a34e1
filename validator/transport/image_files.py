"""Runs commands in the files of an image (tier T0): `image://PATH`, a mounted tree or a raw disk image.

The image is not booted and not changed: it is mounted read-only in a cage (cage.py), which ends with the command. Its
programs cannot reach this machine's files, processes, network or kernel settings. The kernel's file
system drivers do read a raw disk image.
"""

from __future__ import annotations

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
        raise ImageUnusable(f"{path}: no such file or directory", "name a mounted tree or a raw disk image")
    if os.geteuid() != 0:
        raise ImageUnusable(f"{path} can only be entered by root (mounts, namespaces)", "run it with sudo")
    if shutil.which("mount", path=_ENVIRONMENT["PATH"]) is None:
        raise ImageUnusable("mount is not installed", "apt-get install mount")
    entered = Entered(image, None if path.is_dir() else partition_offset(path), budget)
    channel = entered.open("exec true")
    channel.settimeout(30)
    try:
        channel.recv(1)  # b"" when the program has ended
    except TimeoutError as error:
        entered.close()
        raise ImageUnusable(f"{path}: its /bin/sh did not answer within 30 s") from error
    channel._process.wait(5)
    if channel._process.returncode != 0:
        lines = channel.recv_stderr(4096).decode(errors="replace").strip().splitlines()[:1] or ["no output"]
        entered.close()
        raise ImageUnusable(f"{path} cannot be entered: {lines[0].removeprefix('cage: ')}", hint(lines[0]))
    return entered


def hint(error: str) -> str:
    if "Exec format error" in error:
        return "the image has another architecture than this machine"
    if "not permitted" in error or "denied" in error:
        return "namespaces and mounts are needed: run it on the machine itself, or in a container with --privileged"
    return "expected the root of a system, or a raw disk image whose largest partition is one"


def partition_offset(disk: Path) -> int:
    """The offset of the largest partition of a raw disk image in bytes (GPT or MBR); 0 without a partition table."""
    with disk.open("rb") as file:
        first = file.read(_SECTOR)
        if len(first) < _SECTOR or first[510:] != b"\x55\xaa":
            return 0
        rows = [struct.unpack_from("<4xB3xII", first, 446 + 16 * number) for number in range(4)]
        partitions = [(size, start) for kind, start, size in rows if kind not in (0, 0xEE)]
        if any(kind == 0xEE for kind, _, _ in rows):
            partitions = _gpt(file)
    return max(partitions)[1] * _SECTOR if partitions else 0


def _gpt(file: IO[bytes]) -> list[tuple[int, int]]:
    """Size and start of each partition, in sectors; UEFI 2.10, 5.3."""
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
        struct.unpack_from("<QQ", entry, 32) for entry in entries if len(entry) == size and entry[:16].strip(b"\0")
    ]
    return [(last - start + 1, start) for start, last in spans]
