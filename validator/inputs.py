"""Files that a person names: read only where they are regular files of a sensible size, so that no read ever waits."""

from __future__ import annotations

import errno
import json
import os
import stat
import zlib
from pathlib import Path
from typing import Any

# A plan or report of hundreds of machines has some MiB.
LARGEST = 256 << 20
_KINDS = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def read_bytes(path: Path, limit: int = LARGEST) -> bytes:
    """The content of a file. OSError: not there, not a regular file, or of more than `limit` bytes."""
    status = path.stat()
    kind = stat.S_IFMT(status.st_mode)
    if kind == stat.S_IFDIR:
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    if kind != stat.S_IFREG:
        raise OSError(errno.EINVAL, f"expected a regular file, got {_KINDS.get(kind, 'something else')}", str(path))
    if status.st_size > limit:
        raise OSError(errno.EFBIG, f"expected at most {limit:,} bytes, got {status.st_size:,}", str(path))
    return path.read_bytes()


def read_text(path: Path, limit: int = LARGEST) -> str:
    """As `read_bytes`; UnicodeDecodeError (a ValueError): not UTF-8."""
    return read_bytes(path, limit).decode("utf-8").replace("\r\n", "\n").replace("\r", "\n")


def parse_json(text: str | bytes) -> Any:
    """A JSON document of others. ValueError: not JSON, nested too deeply, or a number with too many digits."""
    try:
        return json.loads(text)
    except RecursionError as error:
        raise ValueError("lists or objects are nested too deeply") from error


def gunzip(data: bytes, limit: int = LARGEST) -> bytes:
    """The content of gzip data, at most `limit` bytes. ValueError: damaged, cut off, or more, which is not unpacked."""
    parts, size = [], 0
    while data:
        unpacker = zlib.decompressobj(wbits=31)
        try:
            part = unpacker.decompress(data, limit + 1 - size)
        except zlib.error as error:
            raise ValueError(f"not gzip: {error}") from error
        size += len(part)
        if size > limit:
            raise ValueError(f"expected at most {limit:,} bytes, gzip unpacks to more")
        if not unpacker.eof:
            raise ValueError("gzip is cut off")
        parts.append(part)
        data = unpacker.unused_data
    return b"".join(parts)
