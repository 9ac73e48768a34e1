"""Files of the system's directories that no package owns, and which of them are expected."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from validator import remote
from validator.probes.footprints import Declared

_SECONDS = 600.0  # reads the package database and the file system's directories; emulation is slow


@dataclass(frozen=True)
class Entry:
    """A file or link. kind: "f" or "l"; mode: permission bits; target: the stored target of a link."""

    kind: str
    mode: int
    path: str
    target: str = ""

    @property
    def is_executable(self) -> bool:
        return self.kind == "f" and bool(self.mode & 0o111)


class NotListed(Exception):
    """The list of files was cut off: a tool of the system does not work."""


def find(host: Any) -> list[Entry] | None:
    """Files below /etc, /usr, /boot, /opt and /srv that no package owns; None if packages do not own the system.

    NotListed: the list is incomplete.
    """
    done = host.run(f"(\n{remote.text('unpackaged')})", pure=True, timeout=_SECONDS)
    if done.rc != 0:
        return None
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    if not rows or rows.pop() != ["-", "", "end"]:
        raise NotListed("the list of files that no package owns was cut off")
    return [Entry(row[0], int(row[1], 8), row[2], row[3]) for row in rows if len(row) == 4]


def unexpected(entries: Iterable[Entry], below: Iterable[str], declared: Declared) -> list[str]:
    """Paths of the entries below these directories that neither an official AMI nor one of the roles leaves.

    Links are expected: packages make them by alternatives and `systemctl enable`.
    """
    directories = tuple(f"{directory.rstrip('/')}/" for directory in below)
    return [
        entry.path
        for entry in entries
        if entry.kind == "f" and entry.path.startswith(directories)
        if not declared.has(entry.path)
    ]
