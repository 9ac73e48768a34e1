"""Names that others chose, as files below a folder of ours: of hosts, archives, shards, evidence and sites."""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path

_NAME = re.compile(r"[\w.+@-]{1,200}", re.ASCII)  # @: of systemd's template units, among a role's files


class NameRefused(ValueError):
    """A name that is not one plain file name, or a link where a file or folder was expected."""


def is_name(name: str) -> bool:
    """Whether it is one plain name of a file or folder."""
    return _NAME.fullmatch(name) is not None and set(name) != {"."}


def join(folder: Path, *names: str) -> Path:
    """A path below `folder`. NameRefused: a name with other characters than letters, digits and `_.+-@`, or a link."""
    path = folder
    for name in names:
        if not is_name(name):
            raise NameRefused(f"{name[:80]!r}: expected one name of letters, digits, and any of _ . + - @")
        path = path / name
        if path.is_symlink():
            raise NameRefused(f"{path}: a symbolic link, expected a file or folder of its own")
    return path


def files_below(folder: Path) -> Iterator[Path]:
    """Regular files below a folder, relative to it. NameRefused: a link, a device, or a name that `join` refuses."""
    for parent, folders, names in os.walk(folder):
        for name in (*folders, *names):
            path = join(Path(parent), name)
            kind = path.lstat().st_mode
            if not (stat.S_ISREG(kind) or stat.S_ISDIR(kind)):
                raise NameRefused(f"{path}: not a regular file")
            if stat.S_ISREG(kind):
                yield path.relative_to(folder)


def read_bytes(path: Path, limit: int) -> bytes:
    """A regular file that is no link, whoever changes it meanwhile. NameRefused, OSError."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    with os.fdopen(descriptor, "rb") as file:
        status = os.fstat(file.fileno())
        if not stat.S_ISREG(status.st_mode) or status.st_size > limit:
            raise NameRefused(f"{path}: expected a regular file of at most {limit:,} bytes")
        return file.read(limit)
