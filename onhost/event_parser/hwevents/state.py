"""The checkpoint: which records are processed, the tracker's memory, and the intent for the log files.

A record's identity is {boot id, sequence number}; times are for display only. Two files are written in turn, each in
place and with a checksum: if the process is killed during a write, the other file has the state before. (A rename would
be as safe, but makes ext4 flush the file's data, which adds milliseconds between a fault and its line.)
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Any, Dict, Optional, Tuple

SCHEMA = "gpu-ami/event-parser-state/1"


class StateFile:
    """`folder/checkpoint.0` and `.1`: a header line `generation length crc32`, then JSON.

    `load` returns {} where neither is valid; then `last_logged` gives the position.
    """

    def __init__(self, folder: str) -> None:
        self.paths = [os.path.join(folder, "checkpoint.%d" % slot) for slot in (0, 1)]
        self._generation = 0
        self._fds = [-1, -1]

    def load(self) -> Dict[str, Any]:
        newest = {}  # type: Dict[str, Any]
        for slot, path in enumerate(self.paths):
            generation, document = _read_slot(path)
            if generation > self._generation:
                # The next save goes to the other slot: generation and slot have the same parity.
                self._generation, newest = generation + (generation % 2 != slot), document
        return newest

    def save(self, document: Dict[str, Any], durable: bool = False) -> None:
        """Raises OSError and keeps the previous state; the next attempt overwrites the failed one."""
        document["schema"] = SCHEMA
        generation = self._generation + 1
        body = json.dumps(document, separators=(",", ":")).encode("ascii")
        raw = b"%d %d %d\n%s" % (generation, len(body), zlib.crc32(body) & 0xFFFFFFFF, body)
        slot = generation % 2
        if self._fds[slot] < 0:
            self._fds[slot] = os.open(self.paths[slot], os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o600)
        done = 0
        while done < len(raw):
            done += os.pwrite(self._fds[slot], raw[done:], done)
        if durable:
            os.fdatasync(self._fds[slot])
        self._generation = generation

    def close(self) -> None:
        for slot, fd in enumerate(self._fds):
            if fd >= 0:
                os.close(fd)
            self._fds[slot] = -1


def _read_slot(path: str) -> "Tuple[int, Dict[str, Any]]":
    """(generation, document); (0, {}) for a file that is missing, incomplete or of another schema."""
    try:
        with open(path, "rb") as file:
            header, _, rest = file.read().partition(b"\n")
        generation, length, checksum = (int(field) for field in header.split())
        body = rest[:length]
        if generation < 1 or len(body) != length or zlib.crc32(body) & 0xFFFFFFFF != checksum:
            return 0, {}
        document = json.loads(body.decode("ascii"))
    except (OSError, ValueError):
        return 0, {}
    return (generation, document) if isinstance(document, dict) and document.get("schema") == SCHEMA else (0, {})


def last_logged(path: str, boot_id: str, tail: int = 65536) -> Optional[int]:
    """The highest sequence number of this boot in the JSON log's last lines: the position without a state file."""
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
