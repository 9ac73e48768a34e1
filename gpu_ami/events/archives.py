"""Logs as they are handed over: compressed, in archives, in archives of archives. They are read as streams.

gzip, bzip2, xz, zstd, tar and zip are told apart by their content, not by their names. What they unpack to is bounded
(`Limits`), since a few kilobytes can hold terabytes. A member that is not read, or not to its end, is named, with why.
"""

from __future__ import annotations

import bz2
import codecs
import contextlib
import gzip
import io
import lzma
import shutil
import tarfile
import tempfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, BinaryIO, NamedTuple, cast

_HEAD = 8192
_READS_AFTER_THE_END = 8  # tarfile tries some for its two empty blocks
_TAR_MAGIC = slice(257, 262)
_SPOOL_IN_MEMORY = 16 << 20
_ZSTD_PIECE = 512  # may hold 16 MiB: four bytes stand for a block of 128 KiB
_DICTIONARY = 1 << 28  # xz and zstd name the memory that they need
_COMPRESSIONS = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ\x00": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_SUFFIXES = (".gz", ".bz2", ".xz", ".zst", ".tgz", ".tbz2", ".txz", ".tzst")
_ZIP = (b"PK\x03\x04", b"PK\x05\x06", b"PK\x07\x08")
# Formats that are told from a log by their first bytes, and how to make a log of them.
_FOREIGN = {
    b"7z\xbc\xaf\x27\x1c": "a 7-Zip archive: unpack it",
    b"Rar!\x1a\x07": "a RAR archive: unpack it",
    b"\x04\x22\x4d\x18": "compressed with lz4: unpack it",
    b"LZIP": "compressed with lzip: unpack it",
    b"LPKSHHRH": "a binary journal: journalctl --file=… -o short-precise",
    b"\x89LZO\x00\r\n\x1a\n": "compressed with lzop: unpack it",
    b"KDUMP   ": "a kernel dump: its log is in vmcore-dmesg.txt",
    b"\x7fELF": "a program or a core dump",
    b"SQLite format 3\x00": "a database",
}
_UTF16 = {codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
_CONTROL = bytes({*range(9), *range(14, 27), *range(28, 32)})
_DAMAGE = (
    EOFError,
    OSError,
    zlib.error,
    lzma.LZMAError,
    tarfile.TarError,
    zipfile.BadZipFile,
    NotImplementedError,
    ValueError,
)


class Limits(NamedTuple):
    """Of one file that a person names. `ratio` counts from `floor` bytes on: what unpacks to more is no log."""

    file: int = 1 << 30
    total: int = 4 << 30
    members: int = 20000
    depth: int = 8
    floor: int = 16 << 20
    ratio: int = 500


class Unread(NamedTuple):
    """A member, or the rest of one, that was not read."""

    name: str
    why: str


class Member(NamedTuple):
    """A log. `name`: its path in the archive, "" for the file itself."""

    name: str
    stream: BinaryIO


@dataclass
class Archive:
    """One file that a person names, as the logs in it. `unread` is complete when the members have been read."""

    limits: Limits = field(default_factory=Limits)
    unread: list[Unread] = field(default_factory=list)
    has_logs: bool = False
    _total: int = 0
    _members: int = 0

    def members(self, stream: BinaryIO) -> Iterator[Member]:
        """The logs in the order of the archive; each is read before the next is asked for."""
        yield from self._open("", _peekable(stream), 0)

    def _open(self, name: str, stream: io.BufferedReader, depth: int) -> Iterator[Member]:
        head = _head(stream)
        compression = next((kind for magic, kind in _COMPRESSIONS.items() if head.startswith(magic)), "")
        is_tar = head[_TAR_MAGIC] == b"ustar" or (name.endswith(".tar") and len(head) >= 512)
        if depth > self.limits.depth and (compression or is_tar or head.startswith(_ZIP)):
            self.unread.append(Unread(name, f"more than {self.limits.depth} archives in each other"))
        elif compression:
            packed = _Counter(stream)
            unpacked = self._bounded(name, _DECOMPRESSORS[compression](cast(BinaryIO, packed)), packed)
            yield from self._open(_without_suffix(name), _peekable(unpacked), depth + 1)
        elif head.startswith(_ZIP):
            yield from self._zip(name, stream, depth)
        elif is_tar:
            yield from self._tar(name, stream, depth)
        else:
            yield from self._log(name, stream, head)

    def _log(self, name: str, stream: io.BufferedReader, head: bytes) -> Iterator[Member]:
        foreign = next((what for magic, what in _FOREIGN.items() if head.startswith(magic)), "")
        encoding = _utf16(head)
        if foreign:
            self.unread.append(Unread(name, foreign))
        elif encoding:
            self.has_logs = True
            yield Member(name, cast(BinaryIO, _Recoded(stream, encoding)))
        elif name and len(head.translate(None, _CONTROL)) < 0.95 * len(head):  # a serial console writes some
            self.unread.append(Unread(name, "binary"))
        else:
            self.has_logs = True
            yield Member(name, cast(BinaryIO, stream))

    def _tar(self, name: str, stream: io.BufferedReader, depth: int) -> Iterator[Member]:
        try:
            with tarfile.open(fileobj=cast(BinaryIO, _Ending(stream)), mode="r|", errorlevel=0) as archive:
                for entry in archive:
                    path = _join(name, entry.name)
                    if self._counts(path, entry.isreg(), entry.isdir(), "a link or a device"):
                        content = archive.extractfile(entry)
                        assert content is not None
                        with content:
                            yield from self._open(path, _peekable(self._bounded(path, content, None)), depth + 1)
        except _DAMAGE as error:
            self.unread.append(Unread(name, f"damaged or cut off: {error}"))

    def _zip(self, name: str, stream: io.BufferedReader, depth: int) -> Iterator[Member]:
        """A zip's directory is at its end: one that comes as a stream is kept in a temporary file."""
        with tempfile.SpooledTemporaryFile(_SPOOL_IN_MEMORY) as spool:
            try:
                shutil.copyfileobj(self._bounded(name, stream, None), spool)
                with zipfile.ZipFile(cast(BinaryIO, spool)) as archive:
                    yield from self._zip_entries(name, archive, depth)
            except _DAMAGE as error:
                self.unread.append(Unread(name, f"damaged or cut off: {error}"))

    def _zip_entries(self, name: str, archive: zipfile.ZipFile, depth: int) -> Iterator[Member]:
        for entry in archive.infolist():
            path = _join(name, entry.filename)
            if entry.flag_bits & 1:
                self.unread.append(Unread(path, "encrypted"))
            elif self._counts(path, True, entry.is_dir(), ""):
                try:
                    with archive.open(entry) as content:
                        yield from self._open(path, _peekable(self._bounded(path, content, None)), depth + 1)
                except (NotImplementedError, RuntimeError) as error:  # a method that zipfile does not know
                    self.unread.append(Unread(path, str(error)))

    def _counts(self, path: str, is_file: bool, is_folder: bool, otherwise: str) -> bool:
        """Whether a member is to be read; says so where it is not."""
        if is_folder:
            return False
        self._members += 1
        if self._members > self.limits.members:
            if self._members == self.limits.members + 1:
                self.unread.append(Unread(path, f"and all that follow: more than {self.limits.members} members"))
            return False
        if not is_file:
            self.unread.append(Unread(path, otherwise))
        return is_file

    def _bounded(self, name: str, stream: Any, packed: _Counter | None) -> BinaryIO:
        def grow(size: int, so_far: int) -> str:
            """Why no more may be read; "" to go on."""
            self._total += size
            if so_far > self.limits.file:
                return f"only its first {_mib(so_far)} MiB were read"
            if self._total > self.limits.total:
                return f"more than {_mib(self.limits.total)} MiB in total: the rest was not read"
            if packed is not None and so_far > max(self.limits.floor, self.limits.ratio * packed.count):
                sizes = f"{packed.count} bytes unpack to more than {_mib(so_far)} MiB"
                return f"a decompression bomb: {sizes}; the rest was not read"
            return ""

        return cast(BinaryIO, _Bounded(stream, grow, lambda why: self.unread.append(Unread(name, why))))


class _Ending:
    """A stream that ends with EOFError: tarfile skips a member of 2^60 bytes by reading on after the end."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self._empty = 0

    def read(self, size: int = -1, /) -> bytes:
        data = self._stream.read(size)
        self._empty = 0 if data else self._empty + 1
        if self._empty > _READS_AFTER_THE_END:
            raise EOFError("a member is larger than the archive")
        return data


class _Readable(io.RawIOBase):
    def readable(self) -> bool:
        return True


class _Counter(_Readable):
    """A stream that counts what was read of it."""

    def __init__(self, stream: io.BufferedReader) -> None:
        self._stream = stream
        self.count = 0

    def readinto(self, buffer: Any, /) -> int:
        data = self._stream.read1(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        return len(data)

    def read1(self, size: int = -1, /) -> bytes:
        return self.read(size if size > 0 else 65536) or b""


class _Bounded(_Readable):
    """A stream that ends, and says why, where a limit is reached or the data is damaged."""

    def __init__(self, stream: Any, grow: Callable[[int, int], str], on_end: Callable[[str], None]) -> None:
        self._stream, self._grow, self._on_end = stream, grow, on_end
        self._count = 0
        self._ended = False

    def readinto(self, buffer: Any, /) -> int:
        if self._ended:
            return 0
        try:
            data = self._stream.read(len(buffer))
            why = self._grow(len(data), self._count + len(data))
        except _DAMAGE as error:
            data, why = b"", f"damaged or cut off after {self._count} bytes: {error}"
        except Exception as error:  # zstandard's own; imported only where it is used
            if type(error).__name__ != "ZstdError":
                raise
            data, why = b"", f"damaged or cut off after {self._count} bytes: {error}"
        if why:
            self._ended = True
            self._on_end(why)
        buffer[: len(data)] = data
        self._count += len(data)
        return len(data)


class _Xz(_Readable):
    """xz with a limit on the memory that the file asks for."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._decoder = lzma.LZMADecompressor(memlimit=_DICTIONARY)
        self._rest = b""

    def read(self, size: int = -1, /) -> bytes:
        while True:
            if self._decoder.eof:
                self._rest = (self._decoder.unused_data or self._rest).lstrip(b"\0") or self._stream.read(65536).lstrip(
                    b"\0"
                )
                if not self._rest:
                    return b""
                self._decoder = lzma.LZMADecompressor(memlimit=_DICTIONARY)
            source = self._rest or (self._stream.read(65536) if self._decoder.needs_input else b"")
            if not source and self._decoder.needs_input:
                raise EOFError("its end is missing")
            self._rest = b""
            data = self._decoder.decompress(source, size)
            if data:
                return data


class _Recoded(_Readable):
    """UTF-16 as UTF-8, line by line."""

    def __init__(self, stream: io.BufferedReader, encoding: str) -> None:
        self._text = io.TextIOWrapper(stream, encoding, errors="replace", newline="\n")

    def readline(self, size: int | None = -1, /) -> bytes:
        return self._text.readline(-1 if size is None else size).encode("utf-8", "replace")


class _Zstd(_Readable):
    """zstd in pieces: its own reader takes a file that was cut off for a whole one."""

    def __init__(self, stream: BinaryIO) -> None:
        import zstandard

        self._stream = stream
        self._frames = zstandard.ZstdDecompressor(max_window_size=_DICTIONARY)
        self._decoder = self._frames.decompressobj()
        self._source = self._ready = b""
        self._is_inside = False

    def read(self, size: int = -1, /) -> bytes:
        while not self._ready:
            self._source = self._source or self._stream.read(_ZSTD_PIECE)
            if not self._source and self._is_inside:
                raise EOFError("its end is missing")
            if not self._source:
                return b""
            self._ready = self._decoder.decompress(self._source)
            self._source, self._is_inside = b"", not self._decoder.eof
            if self._decoder.eof:
                self._source = self._decoder.unused_data.lstrip(b"\0")
                self._decoder = self._frames.decompressobj()
        data, self._ready = self._ready[:size], self._ready[size:]
        return data


_DECOMPRESSORS: dict[str, Callable[[BinaryIO], Any]] = {
    "gzip": lambda stream: gzip.GzipFile(fileobj=stream), "bzip2": bz2.BZ2File, "xz": _Xz, "zstd": _Zstd,
}  # fmt: skip


def _peekable(stream: BinaryIO) -> io.BufferedReader:
    """With `peek`. A stream that has it is taken as it is: a second buffer would wait for more than a pipe has."""
    return stream if isinstance(stream, io.BufferedReader) else io.BufferedReader(cast(io.RawIOBase, stream), 65536)


def _head(stream: io.BufferedReader) -> bytes:
    with contextlib.suppress(io.UnsupportedOperation):
        return stream.peek(_HEAD)[:_HEAD]
    return b""


def _utf16(head: bytes) -> str:
    """The encoding of UTF-16 text, with its mark or without; "" for other text."""
    marked = next((encoding for mark, encoding in _UTF16.items() if head.startswith(mark)), "")
    half = len(head) // 2
    if marked or half < 8:
        return marked
    even, odd = head[0 : 2 * half : 2].count(0), head[1 : 2 * half : 2].count(0)
    if odd > 0.8 * half and even < 0.05 * half:
        return "utf-16-le"
    return "utf-16-be" if even > 0.8 * half and odd < 0.05 * half else ""


def _without_suffix(name: str) -> str:
    suffix = next((suffix for suffix in _SUFFIXES if name.lower().endswith(suffix)), "")
    tar = ".tar" if suffix.startswith(".t") else ""
    return name[: len(name) - len(suffix)] + tar if suffix else name


def _join(folder: str, name: str) -> str:
    return f"{folder}/{name.removeprefix('./')}" if folder else name.removeprefix("./")


def _mib(size: int) -> int:
    return size >> 20
