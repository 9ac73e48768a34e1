"""The errors that a user can meet, and the exit code of each.

GpuAmiError            (never raised itself)
├── ImageFailed        1  the image failed a check
├── UsageError         2  a recipe, a file or an argument is wrong
│   └── MissingTool    2  a program or package that this stage needs is not installed
├── BuildError         3  Packer or Ansible did not produce an image
├── CloudError         4  the cloud, the network or a machine failed
│   ├── MachineError   4  a machine did not boot or stopped answering
│   ├── Unreachable    4  no connection to AWS, or it broke off: DNS, a reset, a timeout
│   └── ForeignAnswer  4  something that is not AWS answered: a proxy, a login page
├── CapacityError      5  no capacity for an instance type (never green)
└── InternalError      8  a defect of gpu-ami: says nothing about the image

The library raises; only `cli.py` prints and exits.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Sequence
from types import FrameType
from typing import Literal, TypedDict


def counted(number: int, noun: str) -> str:
    """`1 mistake`, `2 mistakes`, `0 mistakes`: for nouns whose plural ends in s."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


ExitCode = Literal[1, 2, 3, 4, 5, 8, 130]


_AT_ONCE_SECONDS = 0.5


def end_as_by_ctrl_c() -> None:
    """SIGTERM and SIGHUP end this program as Ctrl-C does: through every `finally` that cleans up.

    `timeout` sends its signal to the program and to its group, so to the program twice: signals within half a second
    are one. The second would end the cleaning up before Packer was told to.
    """
    last = -_AT_ONCE_SECONDS

    def interrupt(signum: int, frame: FrameType | None) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= _AT_ONCE_SECONDS:
            last = now
            signal.default_int_handler(signum, frame)

    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(signum) != signal.SIG_IGN:  # nohup: the run outlives the terminal
            signal.signal(signum, interrupt)


class ErrorDocument(TypedDict):
    """What a command prints under --json in place of its result when it fails. exit_code: that of the process."""

    error: str
    details: list[str]
    hint: str
    exit_code: ExitCode


class GpuAmiError(Exception):
    """What went wrong (message), what to do (hint), and how the process ends (exit_code)."""

    exit_code: ExitCode = 4

    def __init__(self, message: str, *, hint: str = "", details: Sequence[str] = (), code: str = "") -> None:
        super().__init__(message)
        self.code = code  # AWS's error code, where AWS refused a call
        self.message = message
        self.hint = hint
        self.details = tuple(details)  # further lines: a command, a console's tail, one line a mistake

    def to_json(self) -> ErrorDocument:
        """The error under --json (`python -m gpu_ami.json_schemas commands`, "error")."""
        return {
            "error": self.message,
            "details": list(self.details),
            "hint": self.hint,
            "exit_code": self.exit_code,
        }

    def __str__(self) -> str:
        lines = [self.message, *(f"  {line}" for line in self.details)]
        return "\n".join([*lines, f"  → {self.hint}"] if self.hint else lines)


class ImageFailed(GpuAmiError):
    exit_code = 1


class UsageError(GpuAmiError):
    exit_code = 2


class MissingTool(UsageError):
    pass


class BuildError(GpuAmiError):
    exit_code = 3


class CloudError(GpuAmiError):
    exit_code = 4


class MachineError(CloudError):
    pass


class Unreachable(CloudError):
    pass


class ForeignAnswer(CloudError):
    pass


class CapacityError(GpuAmiError):
    exit_code = 5


class InternalError(GpuAmiError):
    exit_code = 8
