"""A program as the way to a host, as OpenSSH's ProxyCommand: SSH speaks to its standard input and output."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import signal
import socket
import subprocess
import tempfile
from collections.abc import Mapping
from typing import IO

_END_SECONDS = 2.0


def expand(command: str, address: str, port: int, user: str) -> str:
    """The command with OpenSSH's tokens replaced: %h host, %p port, %r user, %% a per cent sign."""
    values = {"h": shlex.quote(address), "p": str(port), "r": shlex.quote(user), "%": "%"}
    return re.sub(r"%([hpr%])", lambda match: values[match[1]], command)


class Proxy:
    """A running program; `socket` is connected with its standard input and output."""

    def __init__(self, command: str, environment: Mapping[str, str]) -> None:
        self._errors: IO[bytes] = tempfile.TemporaryFile()  # noqa: SIM115  # closed by close()
        self.socket, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(
                ["sh", "-c", f"exec {command}"],
                stdin=theirs.fileno(),
                stdout=theirs.fileno(),
                stderr=self._errors,
                env={**os.environ, **environment},
                start_new_session=True,  # Ctrl-C ends it through close(), after what SSH still has to say
            )

    def close(self) -> None:
        """Ends the program and everything it started."""
        self.socket.close()
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGTERM)
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait()
        self._errors.close()

    def failure(self) -> str:
        """Exit status and last line of errors of a program that has ended; "" while it runs."""
        try:
            status = self._process.wait(0.2)
        except subprocess.TimeoutExpired:
            return ""
        self._errors.seek(0)
        lines = self._errors.read().decode(errors="replace").strip().splitlines()
        return f"exited with status {status}{f': {lines[-1]}' if lines else ''}"
