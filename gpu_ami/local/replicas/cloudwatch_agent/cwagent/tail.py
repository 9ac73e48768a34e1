"""Follows a log file by offset, through rotation, truncation and restarts of the agent.

The state file (logs/state/<path with _ for />) holds three lines: offset, path, inode. It is written only after the
service has the events before the offset.
"""

from __future__ import annotations

import os

_CHUNK = 256 * 1024


class Tail:
    """Lines of one file with the offset after each."""

    def __init__(self, path: str, state_folder: str) -> None:
        self.path = path
        self._state = os.path.join(state_folder, path.replace("/", "_").lstrip("_"))
        self._file: int | None = None
        self._inode = 0
        self._read = 0  # offset of what was read
        self._pending = b""

    def _open(self) -> bool:
        offset, inode = self._saved()
        # Rotated while the agent was down: reads the rest of the old file first, if it still exists.
        for path in (self.path, self.path + ".1"):
            try:
                descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except OSError:
                continue
            status = os.fstat(descriptor)
            if not inode or status.st_ino == inode:
                self._take(descriptor, status.st_ino, offset if offset <= status.st_size else 0)
                return True
            os.close(descriptor)
        return self._open_fresh()

    def _open_fresh(self) -> bool:
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        self._take(descriptor, os.fstat(descriptor).st_ino, 0)
        return True

    def _take(self, descriptor: int, inode: int, offset: int) -> None:
        self.close()
        self._file, self._inode, self._read, self._pending = descriptor, inode, offset, b""
        os.lseek(descriptor, offset, os.SEEK_SET)

    def _saved(self) -> tuple[int, int]:
        try:
            with open(self._state, encoding="utf-8") as file:
                lines = file.read().splitlines()
            return int(lines[0]), int(lines[2])
        except (OSError, ValueError, IndexError):
            return 0, 0

    def lines(self) -> list[tuple[bytes, int, int]]:
        """New complete lines: (line, inode, offset after it). A rotated file is read to its end first."""
        if self._file is None and not self._open():
            return []
        lines = self._drain()
        if not lines and self._moved() and self._open_fresh():
            lines = self._drain()
        return lines

    def _drain(self) -> list[tuple[bytes, int, int]]:
        assert self._file is not None
        if os.fstat(self._file).st_size < self._read:  # truncated in place
            self._take(os.dup(self._file), self._inode, 0)
        data = os.read(self._file, _CHUNK)
        self._read += len(data)
        *complete, self._pending = (self._pending + data).split(b"\n")
        offset = self._read - len(self._pending) - sum(len(line) + 1 for line in complete)
        lines = []
        for line in complete:
            offset += len(line) + 1
            lines.append((line, self._inode, offset))
        return lines

    def _moved(self) -> bool:
        try:
            return os.stat(self.path).st_ino != self._inode
        except OSError:
            return False  # the path is missing for a moment; the open file is still valid

    def save(self, inode: int, offset: int) -> None:
        """Records that everything before `offset` of that file was sent."""
        with open(self._state + ".new", "w", encoding="utf-8") as file:
            file.write(f"{offset}\n{self.path}\n{inode}\n")
        os.replace(self._state + ".new", self._state)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
