"""Follows a log file by offset, through rotation, truncation and restarts of the agent.

The state file (logs/state/<path with _ for />) holds two lines, offset and path: as the original it does not know which
file the offset is of (amazon-cloudwatch-agent#2184). At its start the agent seeks there, in whatever file has the path
now. It is written only after the service has the events before the offset.
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
        self._size = 0  # largest that the file was: a smaller one was truncated

    def _open(self) -> bool:
        """Seeks to the saved offset, even behind the end: the file is read when it has grown to there, or shrinks."""
        offset = self._saved()
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_CLOEXEC)
        except OSError:
            return False
        status = os.fstat(descriptor)
        self._take(descriptor, status.st_ino, offset)
        self._size = status.st_size
        return True

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
        self._size = 0
        os.lseek(descriptor, offset, os.SEEK_SET)

    def _saved(self) -> int:
        try:
            with open(self._state, encoding="utf-8") as file:
                return max(0, int(file.readline()))
        except (OSError, ValueError):
            return 0

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
        size = os.fstat(self._file).st_size
        if size < self._size:  # truncated in place
            self._take(os.dup(self._file), self._inode, 0)
        self._size = max(self._size, size)
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
        """Records that everything before `offset` of the file was sent; of one that was rotated since, nothing."""
        if inode != self._inode:
            return
        with open(self._state + ".new", "w", encoding="utf-8") as file:
            file.write(f"{offset}\n{self.path}\n")
        os.replace(self._state + ".new", self._state)

    def close(self) -> None:
        if self._file is not None:
            os.close(self._file)
            self._file = None
