"""The serial console of a machine: a file that QEMU appends to."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

CONSOLE = "console.log"


def read_console(folder: Path, limit: int = 64 * 1024) -> bytes:
    """The last `limit` bytes of the machine's serial port, of all its boots."""
    try:
        with (folder / CONSOLE).open("rb") as stream:
            stream.seek(max(0, os.fstat(stream.fileno()).st_size - limit))
            return stream.read()
    except FileNotFoundError:
        return b""


def note_on_console(folder: Path, text: str) -> None:
    """Appends a line of the region's own to the console. On a full disk it is omitted."""
    with contextlib.suppress(OSError), (folder / CONSOLE).open("ab") as stream:
        stream.write(f"\r\n[local region] {text}\r\n".encode())


def cap_console(folder: Path, most: int = 8 * 1024**2, keep: int = 1024**2) -> None:
    """Truncates a console of more than `most` bytes to its last `keep`. QEMU appends at the new end."""
    path = folder / CONSOLE
    with contextlib.suppress(FileNotFoundError):
        if path.stat().st_size > most:
            tail = read_console(folder, keep)
            with path.open("r+b") as stream:
                stream.truncate(0)
                stream.write(tail)
