"""Files of the system's directories that no package owns, and which of them are expected."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from validator import remote
from validator.file_account import Entry as BaseEntry
from validator.file_account import Inventory
from validator.probes.footprints import Declared

_AT_ONCE = 2000
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


def find(host: Any, *, whole: bool = False) -> list[Entry] | None:
    """Files below /etc, /usr, /boot, /opt and /srv that no package owns; None if packages do not own the system.

    whole: lists them even then, with the system's own programs among them. NotListed: the list is incomplete.
    """
    set_whole = "whole=1\n" if whole else ""
    done = host.run(f"(\n{set_whole}{remote.text('unpackaged')})", pure=True, timeout=_SECONDS)
    if done.rc != 0:
        return None
    rows = [line.split("\t") for line in done.stdout.splitlines()]
    if not rows or rows.pop() != ["-", "", "end"]:
        raise NotListed("the list of files that no package owns was cut off")
    return [Entry(row[0], int(row[1], 8), row[2], row[3]) for row in rows if len(row) == 4]


def not_of_base(host: Any, entries: Iterable[Entry], base: Inventory) -> list[Entry]:
    """The entries without those that the base AMI has with the same type, mode, content and target.

    What the builder's own first boot wrote is not the base AMI's.
    """
    entries = list(entries)
    same = {entry.path: before for entry in entries if (before := _in_base(entry, base))}
    files = [path for path, before in same.items() if before.kind == "f" and "\n" not in path]
    digests = _digests(host, files) if files else {}
    unchanged = {path for path, before in same.items() if before.kind == "l" or digests.get(path, "-") == before.sha256}
    return [entry for entry in entries if entry.path not in unchanged]


def _in_base(entry: Entry, base: Inventory) -> BaseEntry | None:
    before = base.entries.get(entry.path)
    if before is None or before.kind != entry.kind or (base.running and before.changed >= base.boot_time - 1):
        return None
    return before if before.target == entry.target and (entry.kind == "l" or before.mode == entry.mode) else None


def _digests(host: Any, paths: Sequence[str]) -> dict[str, str]:
    """SHA-256 by path. An answer has a limited size."""
    digests: dict[str, str] = {}
    for some in (paths[start : start + _AT_ONCE] for start in range(0, len(paths), _AT_ONCE)):
        listed = "\n".join(some)
        command = f"xargs -d '\\n' sha256sum -z -- <<'END_OF_PATHS'\n{listed}\nEND_OF_PATHS"
        rows = (line.partition("  ") for line in host.run(command, pure=True, timeout=_SECONDS).stdout.split("\0"))
        digests |= {path: digest for digest, _, path in rows}
    return digests


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
