"""QEMU's control socket (QMP).

Source: QEMU 7.2, docs/interop/qmp-spec.txt: JSON lines; a greeting, then answers and events.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from gpu_ami.errors import MachineError


class Qmp:
    """A connection to QEMU's control socket. One thread iterates over `messages`; any may `execute`."""

    def __init__(self, path: Path, still_there: Callable[[], bool], timeout: float = 30.0) -> None:
        self._socket = _connect(path, still_there, timeout)
        self._lines = self._socket.makefile("rb")
        self._lock = threading.Lock()
        self._lines.readline()  # the greeting
        self.execute("qmp_capabilities")

    def execute(self, command: str, arguments: Mapping[str, str] | None = None) -> None:
        """Sends a command; its answer comes among the messages and is not waited for."""
        message = {"execute": command} | ({"arguments": arguments} if arguments else {})
        with self._lock:
            self._socket.sendall(json.dumps(message).encode() + b"\n")

    def messages(self) -> Iterator[dict[str, object]]:
        """Events and answers, until QEMU ends."""
        for line in self._lines:
            yield json.loads(line)


def _connect(path: Path, still_there: Callable[[], bool], timeout: float) -> socket.socket:
    deadline = time.monotonic() + timeout
    while still_there() and time.monotonic() < deadline:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with short_path(path) as name:
                connection.connect(name)
            return connection
        except (FileNotFoundError, ConnectionRefusedError):
            connection.close()
            time.sleep(0.02)  # QEMU creates the socket within milliseconds and does not signal it
    raise MachineError(f"{path}: QEMU did not open its control socket")


@contextlib.contextmanager
def short_path(path: Path) -> Iterator[str]:
    """A name for a socket whose path may be longer than the 107 bytes that the kernel accepts."""
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
