"""The agent's own log: logs/amazon-cloudwatch-agent.log, "2026-11-21T13:00:00Z I! …"."""

from __future__ import annotations

import os
import threading
import time

_LARGEST = 10 * 1024 * 1024


class Journal:
    """Appends lines; a file of more than 10 MiB becomes .1."""

    def __init__(self, path: str) -> None:
        self._path = path
        self._lock = threading.Lock()

    def info(self, text: str) -> None:
        self._write("I!", text)

    def warn(self, text: str) -> None:
        self._write("W!", text)

    def error(self, text: str) -> None:
        self._write("E!", text)

    def _write(self, level: str, text: str) -> None:
        line = f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())} {level} {text}\n"
        with self._lock, open(self._path, "a", encoding="utf-8") as file:
            file.write(line)
            if file.tell() > _LARGEST:
                os.replace(self._path, self._path + ".1")
