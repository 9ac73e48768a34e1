"""Machines whose commands have scripted answers: as testinfra asks them, and over SSH."""

from __future__ import annotations

import fnmatch
import subprocess
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Self

import testinfra.host
from testinfra.backend import base

from validator.probes import packages
from validator.transport.ssh import Finished

Output = str | bytes
# Output, or exit status and output, or those and errors. An exception is raised; a function gets the command.
Reply = Output | tuple[int, Output] | tuple[int, Output, Output] | BaseException | Callable[[str], "Reply"]
# Patterns (shell wildcards; of a pattern without one, a part) and their replies, or a function of the command.
Script = Mapping[str, Reply] | Callable[[str], Reply]


def reply_to(command: str, script: Script) -> tuple[int, bytes, bytes]:
    """Return exit status, output and errors of the first pattern that fits; AssertionError: none does."""
    reply: Reply | None = script(command) if callable(script) else _first(command, script)
    while callable(reply):
        reply = reply(command)
    if reply is None:
        raise AssertionError(f"the check asked what this test does not answer: {command}")
    if isinstance(reply, BaseException):
        raise reply
    status, *texts = (0, reply) if isinstance(reply, Output) else reply
    output, errors = [text.encode() if isinstance(text, str) else text for text in (*texts, b"")[:2]]
    return status, output, errors


def on_this_machine(command: str) -> Reply:
    """The script of a host whose commands run here."""
    done = subprocess.run(["sh", "-c", command], capture_output=True, timeout=60, check=False)
    return done.returncode, done.stdout, done.stderr


def _first(command: str, script: Mapping[str, Reply]) -> Reply | None:
    return next((reply for pattern, reply in script.items() if fnmatch.fnmatchcase(command, pattern)), None)


class ScriptedHost(base.BaseBackend):
    """The backend of a testinfra host that answers from a script.

    The package database can be read unless the script says otherwise.
    """

    NAME = "table"

    def __init__(self, script: Script) -> None:
        super().__init__("table")
        self.script = script
        self.asked: list[str] = []

    def _says_of_the_database(self) -> bool:
        """A pattern is of the query itself, or an answer is of a damaged database (dpkg-query's status 2)."""
        if callable(self.script):
            return True
        damaged = any(isinstance(reply, tuple) and reply[0] == 2 for reply in self.script.values())
        return damaged or any(pattern.split()[-1] in ("dpkg", "rpm") for pattern in self.script)

    def run(self, command: str, *args: str, **_: Any) -> base.CommandResult:
        text = self.quote(command, *args)
        self.asked.append(text)
        if text in packages.QUERIES.values() and not self._says_of_the_database():
            return self.result(0, text.encode(), b"installed\n", b"")
        status, output, errors = reply_to(text, self.script)
        return self.result(status, text.encode(), output, errors)


def table_host(script: Script) -> Any:
    """A testinfra host that answers from the script; `host.backend.asked` has the commands."""
    host = testinfra.host.Host(ScriptedHost(script))
    host.backend.set_host(host)
    return host


class ScriptedConnection:
    """An SSH connection that answers from a script, in the way of `validator.transport.ssh`."""

    def __init__(self, script: Script, target: Any = None, host_key: str = "ssh-ed25519 AAAA") -> None:
        self.script, self.target, self.host_key, self.closed = script, target, host_key, False
        self.asked: list[tuple[str, bytes | None]] = []  # with its input

    def run(self, command: str, timeout: float = 60.0, input: bytes | None = None) -> Finished:
        self.asked.append((command, input))
        status, output, errors = reply_to(command, self.script)
        return Finished(status, output, errors, 0.1)

    def stream(self, command: str) -> Iterator[bytes]:
        yield from self.run(command).stdout.splitlines()

    def close(self) -> None:
        self.closed = True

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
