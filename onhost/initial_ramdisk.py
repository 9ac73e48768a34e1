"""Lists the files of each initial ramdisk below /boot with their digests: JSON lines, one a ramdisk.

Runs on the system itself, or on a tree (--root), with Python 3.6 or newer and its standard library. An archive is cpio
(newc), perhaps after an uncompressed early one with microcode, as it is or compressed: gzip, xz, bzip2 by Python, zstd
and LZ4 by their programs. validator/file_account/initial_ramdisk.py reads the lines.
"""

import argparse
import bz2
import glob
import hashlib
import json
import lzma
import os
import re
import stat
import subprocess
import sys
import time
import zlib
from typing import Any, Callable, Dict, List

PATTERNS = ("/boot/initrd.img-*", "/boot/initramfs-*.img", "/boot/initrd-*")
SECONDS = 60.0  # for all ramdisks of a system together
MOST_BYTES = 4 << 30
# Small files that no file of the system can be compared with: their text is what tells.
TEXTS = re.compile(r"scripts/[\w-]+/ORDER|conf/(arch\.conf|modules)")
MOST_TEXT = 65536
CPIO = (b"070701", b"070702")
PROGRAMS = {b"\x28\xb5\x2f\xfd": "zstd", b"\x02\x21\x4c\x18": "lz4", b"\x04\x22\x4d\x18": "lz4"}
LZO = b"\x89LZO"
MODULES: Dict[bytes, Callable[[], Any]] = {
    b"\x1f\x8b": lambda: zlib.decompressobj(31), b"\xfd7zXZ\0": lzma.LZMADecompressor, b"BZh": bz2.BZ2Decompressor,
    b"\x5d\0\0": lzma.LZMADecompressor,
}  # fmt: skip


class Unreadable(Exception):
    """A ramdisk that is not what the kernel can unpack; the message says why."""


class Unknown(Exception):
    """A ramdisk that cannot be read here; the message says why."""


class Decompressed:
    """What one compressed stream of a file holds. At its end the file stands where the stream ended."""

    def __init__(self, file: Any, decompressor: Any) -> None:
        self.file, self.decompressor, self.data = file, decompressor, b""

    def read(self, size: int) -> bytes:
        while not self.data and not self.decompressor.eof:
            block = self.file.read(1 << 16)
            if not block:
                raise Unreadable("cut off")
            try:
                self.data = self.decompressor.decompress(block)
            except OSError as error:  # of bz2
                raise Unreadable(str(error))
            if self.decompressor.eof:
                self.file.seek(-len(self.decompressor.unused_data), 1)
        part, self.data = self.data[:size], self.data[size:]
        return part


class Archive:
    """A stream of cpio. The deadline and the limit of bytes hold for whatever a decompressor makes."""

    def __init__(self, stream: Any, deadline: float) -> None:
        self.stream, self.deadline, self.at = stream, deadline, 0
        self.word = b""  # read ahead

    def is_at_end(self) -> bool:
        """Whether nothing but padding follows; else the next archive does, which begins at a multiple of four."""
        while not self.word.strip(b"\0"):
            self.word = b""
            first = self.stream.read(1)
            if not first:
                return True
            self.at += 1
            self.word = first + self.read(-self.at % 4)
        return False

    def read(self, size: int) -> bytes:
        parts: List[bytes] = [self.word[:size]] if self.word else []
        size, self.word = size - len(self.word[:size]), self.word[size:]
        while size > 0:
            if time.monotonic() > self.deadline:
                raise Unknown("not read within %.0f s" % SECONDS)
            part = self.stream.read(min(size, 1 << 20))
            if not part:
                raise Unreadable("cut off")
            parts.append(part)
            size -= len(part)
            self.at += len(part)
            if self.at > MOST_BYTES:
                raise Unknown("larger than %d GiB" % (MOST_BYTES >> 30))
        return b"".join(parts)

    def skip_to_word(self) -> None:
        self.read(-self.at % 4)


def list_archive(archive: Archive, files: List[List[Any]], texts: Dict[str, str]) -> None:
    """Reads one cpio archive up to its trailer: [name, type, mode, SHA-256 or link target, size] of each file."""
    linked: Dict[int, List[List[Any]]] = {}
    while True:
        magic = archive.read(6)
        if magic not in CPIO:
            raise Unreadable("not a cpio archive of the new format at byte %d" % (archive.at - 6))
        try:
            fields = [int(archive.read(8), 16) for _ in range(13)]
        except ValueError:
            raise Unreadable("not a cpio header at byte %d" % archive.at)
        inode, mode, links, size = fields[0], fields[1], fields[4], fields[6]
        name = os.fsdecode(archive.read(fields[11]).rstrip(b"\0"))
        archive.skip_to_word()
        if name == "TRAILER!!!":
            return
        name = re.sub(r"^(\./|/)+", "", name)
        row = [name, "?", stat.S_IMODE(mode), "", size]
        kind = stat.S_IFMT(mode)
        row[1] = {stat.S_IFREG: "f", stat.S_IFDIR: "d", stat.S_IFLNK: "l"}.get(kind, "n")
        if kind == stat.S_IFREG:
            digest, left, text = hashlib.sha256(), size, b""
            while left:
                block = archive.read(min(left, 1 << 20))
                digest.update(block)
                left -= len(block)
                if TEXTS.fullmatch(name) and size <= MOST_TEXT:
                    text += block
            row[3] = digest.hexdigest()
            if TEXTS.fullmatch(name):
                texts[name] = text.decode("utf-8", "backslashreplace") if size <= MOST_TEXT else "too long"
            if links > 1:  # the last name of a hard-linked file has its content
                linked.setdefault(inode, []).append(row)
                if size:
                    for other in linked[inode]:
                        other[3], other[4] = row[3], size
        else:
            target = archive.read(size)
            row[3] = os.fsdecode(target) if kind == stat.S_IFLNK else ""
        archive.skip_to_word()
        files.append(row)


def read_ramdisk(path: str, deadline: float) -> Dict[str, Any]:
    """Its files; `error`: why it ends there; `unknown`: why it could not be read."""
    found: Dict[str, Any] = {"files": [], "texts": {}, "error": "", "unknown": ""}
    try:
        with open(path, "rb") as file:
            while True:
                magic = next_magic(file)
                if not magic:
                    return found
                if magic in CPIO:
                    list_archive(Archive(file, deadline), found["files"], found["texts"])
                else:
                    list_compressed(file, magic, deadline, found)
    except (EOFError, ValueError, lzma.LZMAError, zlib.error, Unreadable, subprocess.SubprocessError) as error:
        found["error"] = str(error) or type(error).__name__
    except (Unknown, OSError) as error:
        found["unknown"] = str(error)
    return found


def next_magic(file: Any) -> bytes:
    """The first bytes of what follows, past the padding after an archive; none at the end."""
    while True:
        head = file.read(4)
        if not head:
            return b""
        if head.strip(b"\0"):
            file.seek(-len(head), 1)
            whole: bytes = file.read(6)
            file.seek(-len(whole), 1)
            return whole


def list_compressed(file: Any, magic: bytes, deadline: float, found: Dict[str, Any]) -> None:
    program = next((name for start, name in PROGRAMS.items() if magic.startswith(start)), "")
    opener = next((opener for start, opener in MODULES.items() if magic.startswith(start)), None)
    if opener is not None:
        list_stream(Archive(Decompressed(file, opener()), deadline), found)
        return
    if not program:
        if found["files"] and not magic.startswith(LZO):
            raise Unreadable("neither an archive nor padding after the archive: %s" % magic.hex())
        raise Unknown("compressed in a way that is not known: it begins with %s" % magic.hex())
    os.lseek(file.fileno(), file.tell(), os.SEEK_SET)
    try:
        process = subprocess.Popen(
            [program, "-dc"], stdin=file.fileno(), stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
    except FileNotFoundError:
        raise Unknown("the system has no program %s, which decompresses it" % program)
    try:
        list_stream(Archive(process.stdout, deadline), found)
        if process.wait(10) != 0:
            raise Unreadable(
                "%s failed with exit code %d: is something after the archive?" % (program, process.returncode)
            )
        file.seek(0, os.SEEK_END)
    finally:
        process.kill()
        process.wait()


def list_stream(archive: Archive, found: Dict[str, Any]) -> None:
    while not archive.is_at_end():
        list_archive(archive, found["files"], found["texts"])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--root", default="/", help="the tree whose ramdisks are listed [%(default)s]")
    root = parser.parse_args().root.rstrip("/")
    deadline = time.monotonic() + SECONDS
    for path in sorted({path for pattern in PATTERNS for path in glob.glob(glob.escape(root) + pattern)}):
        if os.path.isfile(path) and not os.path.islink(path):
            record = {"ramdisk": path[len(root) :]}
            record.update(read_ramdisk(path, deadline))
            sys.stdout.write(json.dumps(record) + "\n")


if __name__ == "__main__":
    main()
