"""A command to a host's shell, and its answer."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Command:
    """A shell command and its deadline in seconds."""

    text: str
    deadline: float = 60.0


@dataclass(frozen=True)
class Answer:
    """The result of a command: exit status, outputs (bytes), seconds on the host, whether its deadline expired."""

    rc: int
    stdout: bytes
    stderr: bytes
    seconds: float
    expired: bool = False
