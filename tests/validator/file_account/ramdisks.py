"""Initial ramdisks for tests: cpio archives as update-initramfs writes them."""

from __future__ import annotations

import stat
from collections.abc import Mapping

FILE, FOLDER, LINK = stat.S_IFREG, stat.S_IFDIR, stat.S_IFLNK


def cpio(files: Mapping[str, tuple[int, bytes]], links: int = 1) -> bytes:
    """An archive of the new format: name → (type and mode, content or target). links: all are names of one file."""
    data = b""
    for number, (name, (mode, content)) in enumerate({**files, "TRAILER!!!": (0, b"")}.items(), 1):
        fields = [7 if links > 1 and mode else number, mode, 0, 0, links, 0, len(content), 0, 0, 0, 0, len(name) + 1, 0]
        header = b"070701" + b"".join(b"%08X" % field for field in fields) + name.encode() + b"\0"
        data += header + bytes(-len(header) % 4) + content + bytes(-len(content) % 4)
    return data
