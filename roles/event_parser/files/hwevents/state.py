"""The checkpoint: which records are done, what the tracker remembers, and what was promised to the log files.

One JSON file, replaced atomically. Identity of a record is {boot id, sequence number}; times are for display only.
"""

from __future__ import annotations

import json
import os
from typing import Any, Dict, Optional

SCHEMA = "gpu-ami/event-parser-state/1"


def read_boot_id(path: str = "/proc/sys/kernel/random/boot_id") -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


class StateFile:
    """`load` gives {} for a missing or unreadable file: the log files' own tail is the fallback."""

    def __init__(self, path: str) -> None:
        self.path = path

    def load(self) -> Dict[str, Any]:
        try:
            with open(self.path, encoding="utf-8", errors="surrogateescape") as file:
                document = json.load(file)
        except (OSError, ValueError):
            return {}
        return document if isinstance(document, dict) and document.get("schema") == SCHEMA else {}

    def save(self, document: Dict[str, Any], durable: bool = False) -> None:
        """Raises OSError and leaves the old state in place."""
        document["schema"] = SCHEMA
        raw = json.dumps(document, separators=(",", ":")).encode("ascii")
        fresh = self.path + ".new"
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        try:
            done = 0
            while done < len(raw):
                done += os.write(fd, raw[done:])
            if durable:
                os.fdatasync(fd)
        finally:
            os.close(fd)
        os.replace(fresh, self.path)


def last_logged(path: str, boot_id: str, tail: int = 65536) -> Optional[int]:
    """The highest sequence number of this boot in the JSON log's last lines: the cursor when the state file is gone."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, os.fstat(file.fileno()).st_size - tail))
            lines = file.read().split(b"\n")
    except OSError:
        return None
    highest = None  # type: Optional[int]
    for line in lines:
        try:
            entry = json.loads(line.decode("utf-8", "replace"))
        except ValueError:
            continue
        if isinstance(entry, dict) and entry.get("boot_id") == boot_id and isinstance(entry.get("seq"), int):
            highest = entry["seq"] if highest is None else max(highest, entry["seq"])
    return highest
