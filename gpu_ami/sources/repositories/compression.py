"""Compressed indexes: gzip, xz, zstd or none, by the name of the file; the decompressed size is limited."""

from __future__ import annotations

import lzma
import zlib
from collections.abc import Callable, Iterator

from gpu_ami.sources.http import SourceError

SUFFIXES = (".xz", ".zst", ".gz", "")  # the smallest first
MAX_INFLATED = 1 << 30
_CHUNK = 1 << 20


def inflate(data: bytes, name: str, limit: int = MAX_INFLATED) -> bytes:
    """The content of a file. limit: bytes. SourceError: damaged, cut off, or larger than the limit."""
    suffix = next(suffix for suffix in SUFFIXES if name.endswith(suffix))
    content = bytearray()
    try:
        for piece in _READERS[suffix](data):
            content += piece
            if len(content) > limit:
                raise SourceError(f"{name}: more than {limit >> 20} MiB when decompressed, from {len(data)} bytes")
    except (zlib.error, lzma.LZMAError, EOFError) as error:
        raise SourceError(f"{name}: damaged or cut off: {error}") from error
    return bytes(content)


def _plain(data: bytes) -> Iterator[bytes]:
    yield data


def _gzip(data: bytes) -> Iterator[bytes]:
    while data:  # a file may have several members
        reader = zlib.decompressobj(wbits=31)
        while not reader.eof:
            piece = reader.decompress(data, _CHUNK)
            data = reader.unconsumed_tail
            if not piece and not data and not reader.eof:
                raise EOFError("its end is missing")
            yield piece
        data = reader.unused_data.lstrip(b"\0")


def _xz(data: bytes) -> Iterator[bytes]:
    while data:
        reader = lzma.LZMADecompressor()
        while not reader.eof:
            piece = reader.decompress(data, _CHUNK)
            data = b""
            if not piece and reader.needs_input:
                raise EOFError("its end is missing")
            yield piece
        data = reader.unused_data.lstrip(b"\0")


def _zstd(data: bytes) -> Iterator[bytes]:
    import io

    import zstandard

    frames = zstandard.ZstdDecompressor(max_window_size=1 << 27)
    try:
        with frames.stream_reader(io.BytesIO(data), read_across_frames=True) as reader:
            while piece := reader.read(_CHUNK):
                yield piece
    except zstandard.ZstdError as error:
        raise zlib.error(str(error)) from error


_READERS: dict[str, Callable[[bytes], Iterator[bytes]]] = {".gz": _gzip, ".xz": _xz, ".zst": _zstd, "": _plain}
