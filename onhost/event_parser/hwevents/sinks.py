"""The two log files: every line is written exactly once, across rotation, full disks and kill -9.

Before a batch is appended, the state file stores an intent: which bytes go to which inode at which offset. After a kill
the next start compares the file's size with the intent and writes the missing bytes: no line is lost, cut or repeated.
This process must be the only writer.
"""

from __future__ import annotations

import os
from typing import Any, Dict, List, Optional

_MODE = 0o644


class FileSink:
    """An append-only log file that may be rotated by others, or reach its size limit `cap`."""

    def __init__(self, path: str, cap: int) -> None:
        self.path = path
        self.cap = cap
        self.fd = -1
        self.inode = -1
        self.size = 0
        self.written = 0
        self.rotations = 0
        self.pending = b""  # bytes of the stored intent that are not on disk yet
        self._unsynced = False

    def open(self) -> None:
        """Opens the file that the path names now, after a rotation the new one. Raises OSError."""
        if self.pending:  # the intent names the old inode: finish there first
            return
        try:
            now = os.stat(self.path)
            if self.fd >= 0 and now.st_ino == self.inode:
                if now.st_size >= self.cap:
                    self._roll()
                self.size = now.st_size if self.fd >= 0 else 0
        except FileNotFoundError:
            now = None
        if self.fd >= 0 and (now is None or now.st_ino != self.inode):
            self.close()
            self.rotations += 1
        if self.fd < 0:
            self.fd = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, _MODE)
            opened = os.fstat(self.fd)
            self.inode, self.size = opened.st_ino, opened.st_size

    def _roll(self) -> None:
        """Rotates the file at its size limit, for images where logrotate does not run often enough."""
        os.replace(self.path, self.path + ".1")
        self.close()
        self.rotations += 1

    def intent(self, data: bytes) -> Dict[str, Any]:
        """The intent for the state file: `data` will be at `offset` of `inode`. Carried out by setting `pending`, then `flush`."""
        return {"inode": self.inode, "offset": self.size, "data": data.decode("utf-8", "surrogateescape")}

    def flush(self) -> bool:
        """Writes the pending bytes; True when none are left. Raises OSError: try again later."""
        while self.pending:
            count = os.write(self.fd, self.pending)
            self.pending = self.pending[count:]
            self.size += count
            self.written += count
            self._unsynced = True
        return True

    def sync(self) -> None:
        if self._unsynced and self.fd >= 0:
            os.fdatasync(self.fd)
            self._unsynced = False

    def close(self) -> None:
        if self.fd >= 0:
            os.close(self.fd)
        self.fd, self.inode = -1, -1

    def recover(self, intent: Optional[Dict[str, Any]]) -> int:
        """Takes over an earlier process's intent: its missing bytes become `pending`. Returns their number."""
        if not intent:
            return 0
        data = str(intent["data"]).encode("utf-8", "surrogateescape")
        path = self._find(int(intent["inode"]))
        if path is None:
            return 0
        self.fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
        self.inode, self.size = int(intent["inode"]), os.fstat(self.fd).st_size
        present = self.size - int(intent["offset"])
        self.pending = data[present:] if 0 <= present < len(data) else b""
        return len(self.pending)

    def _find(self, inode: int) -> Optional[str]:
        """The file of that inode: the log itself or a rotated one."""
        folder, name = os.path.split(self.path)
        candidates = [self.path]  # type: List[str]
        try:
            candidates += [os.path.join(folder, entry) for entry in sorted(os.listdir(folder)) if entry.startswith(name)]
        except OSError:
            pass
        for path in candidates:
            try:
                if os.stat(path).st_ino == inode:
                    return path
            except OSError:
                continue
        return None
