"""One long-lived `sh` on a host that takes batches of commands: one execution for any number of them.

A batch goes out as shell text and comes back as one frame: signs of life, a header with every command's exit status,
times and output sizes, then the outputs as bytes. Commands of a batch run side by side in a few workers, with no input,
outputs in a directory in memory that goes when the shell does. One watchdog a batch holds all deadlines: a `timeout` a
command would cost a process more each, and most commands of a batch are no more than one. What is past its deadline is
killed with all that it started, found by descent and by a mark in the environment.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validator import remote
from validator.transport.ssh import CommandExpired, Connection, ConnectionDropped, TransportFault

if TYPE_CHECKING:
    import paramiko

    from validator.transport.image_files import Channel, Entered

WORKERS = 4
_SLACK_SECONDS = 15.0  # beyond a command's deadline, for the far end to kill it and to answer
_START_SECONDS = 30.0
_OUTPUT_BLOCKS = 1 << 17  # of 512 bytes: no command may print more than 64 MiB

# A shell command of one word and plain arguments: nothing that a shell of its own would do otherwise.
_PLAIN = r"(?: (?:[\w./:,+@%=-]|'[^']*')+)*"
_BUILTIN = re.compile(rf"(?:test|command -v|echo|true|:){_PLAIN}")
_PROGRAM = re.compile(
    rf"(?:stat|cat|ls|readlink|realpath|getent|id|uname|grep|find|head|tail|wc|md5sum|sha256sum|dpkg-query|dpkg|rpm"
    rf"|modinfo|sysctl|systemctl|/sbin/sysctl|/usr/sbin/sysctl|nvidia-smi){_PLAIN}"
)
# What only bash understands, or understands otherwise than a POSIX shell: whoever logs in has bash, as a rule.
_BASH = re.compile(
    r"\[\[|<<<|[<>]\(|&>|\|&|(?<!\$)\(\(|\$['\"]|\{[^{}\s;]*(?:\.\.|,)[^{}\s;]*\}|\$\{!|\$\{\w+(?:\[|\^|,|/|:[\d ])"
    r"|\becho\s+-\w*e|\s==\s|\bpipefail\b|\bread\s+-[^r\s]|\btype\s+-|\bprintf\s+(?:-v|'?%q)|\bexport\s+-f"
    r"|\$\{?(?:BASH\w*|RANDOM|SECONDS|EUID|UID|HOSTNAME|OSTYPE|PIPESTATUS|GROUPS|FUNCNAME|LINENO|SHELLOPTS|SHLVL)\b"
    r"|(?:^|[;&|({\n]|\b(?:then|do|else))\s*(?:source|function|declare|typeset|shopt|mapfile|readarray|let|pushd|popd"
    r"|compgen|disown|enable|time|coproc|select|set\s+[-+]o|ulimit\s+-[^fn]|trap\b.*\b(?:ERR|DEBUG|RETURN))\b"
)

_END_SECONDS = 3.0


class NotRoot(TransportFault):
    """`sudo -n sh` did not give a root shell."""

    kind = "sudo"


@dataclass(frozen=True)
class Command:
    """Shell text and the seconds that it may take."""

    text: str
    deadline: float = 60.0


@dataclass(frozen=True)
class Answer:
    """How a command ended: exit status, outputs (bytes), seconds on the host, and whether its deadline ended it."""

    rc: int
    stdout: bytes
    stderr: bytes
    seconds: float
    expired: bool = False


class Shell:
    """`sh` as the user that logs in or, with `root`, by one `sudo -n sh`."""

    def __init__(self, connection: Connection | Entered, *, root: bool = False) -> None:
        self.connection = connection
        self.batches = 0
        self.commands = 0
        self._mark = f"v{secrets.token_hex(8)}"
        self._buffer = b""
        self._ready = False
        self._busy = False  # a batch is on its way
        self._fault: TransportFault | None = None
        self.root = root
        self._command = "sudo -n sh" if root and connection.target.user != "root" else "sh"
        self._channel: paramiko.Channel | Channel = connection.open(f"exec {self._command}")
        # Nobody waits for its answer: the first batch travels right behind it.
        program = f"mark={self._mark}\n{remote.text('kill_marked')}{remote.text('batch_shell')}"
        try:
            self._channel.sendall(program.encode())
        except Exception as error:
            raise self._gone(error) from error

    def _await_ready(self) -> None:
        try:
            self._line_with_mark(time.monotonic() + _START_SECONDS)
        except (ConnectionDropped, CommandExpired) as error:
            self._channel.settimeout(1.0)
            said = ""
            with contextlib.suppress(OSError):
                said = self._channel.recv_stderr(4096).decode(errors="replace").strip()
            self._channel.close()
            if not self.connection.alive:
                raise
            kind = NotRoot if self.root else ConnectionDropped
            hint = f"{self.connection.target.user} needs sudo without a password" if self.root else "is /bin/sh there?"
            name = self.connection.target.name
            self._fault = kind(f"{name}: `{self._command}` gave no shell ({said or error})", hint)
            raise self._fault from error
        self._ready = True

    def execute(self, batch: Sequence[Command]) -> list[Answer]:
        """Runs the commands side by side; answers in their order. ConnectionDropped when the host goes silent."""
        if not batch:
            return []
        if self._fault is not None:
            raise self._fault
        script = _script(batch)
        self.batches += 1
        self.commands += len(batch)
        patience = max(command.deadline for command in batch) + 1 + _SLACK_SECONDS
        self._busy = True
        try:
            self._channel.settimeout(patience)
            self._channel.sendall(script.encode())
        except (
            Exception
        ) as error:  # OSError, EOFError or SSHException: paramiko has no one class for a broken connection
            if not self._ready:
                self._await_ready()  # it says better why
            raise self._gone(error) from error
        if not self._ready:
            self._await_ready()
        statuses, sizes = self._header(len(batch), patience)
        body = self._read(sum(sizes), patience)
        self._busy = False
        return list(self._answers(batch, statuses, sizes, body))

    def close(self) -> None:
        """Ends the shell, and what it still runs for us: sshd would tell nobody that we have gone."""
        if self._busy and isinstance(self.connection, Connection) and self.connection.alive:
            as_root = "sudo -n " if self._command.startswith("sudo") else ""
            program = f"{remote.text('kill_marked')}validator_kill_marked '{self._mark}-.*'"
            with contextlib.suppress(Exception):
                self.connection.run(f"{as_root}sh -c {shlex.quote(program)}", _END_SECONDS)
        self._channel.close()

    def _header(self, count: int, patience: float) -> tuple[list[list[str]], list[int]]:
        self._line_with_mark(time.monotonic() + patience, patience)
        lines = self._before_mark.split(b"\n")[-3 * count - 1 : -1]
        statuses = [line.decode().split() for line in lines[:count]]
        sizes = [int(line) for line in lines[count:] if line.isdigit()]
        if len(sizes) != 2 * count or any(len(status) != 3 for status in statuses):
            raise self._gone(RuntimeError("the answer is garbled"))
        return statuses, sizes

    def _line_with_mark(self, until: float, patience: float = 0.0) -> str:
        mark = f"\n{self._mark} ".encode()
        while True:
            at = self._buffer.find(mark)
            end = self._buffer.find(b"\n", at + 1) if at >= 0 else -1
            if end >= 0:
                line = self._buffer[at + 1 : end].decode()
                self._before_mark, self._buffer = self._buffer[:at], self._buffer[end + 1 :]
                return line
            # A dot says that a command has ended: as long as they come, the host is alive.
            self._buffer += self._receive(until)
            until = max(until, time.monotonic() + patience)

    def _read(self, size: int, patience: float) -> bytes:
        parts, have = [self._buffer[:size]], min(size, len(self._buffer))
        self._buffer = self._buffer[size:]
        while have < size:
            data = self._receive(time.monotonic() + patience)
            parts.append(data[: size - have])
            self._buffer = data[size - have :]
            have += len(parts[-1])
        return b"".join(parts)

    def _receive(self, until: float) -> bytes:
        self._channel.settimeout(max(0.05, until - time.monotonic()))
        try:
            data = self._channel.recv(1 << 18)
        except TimeoutError as error:
            raise self._gone(error, "went silent") from error
        except Exception as error:
            raise self._gone(error) from error
        if not data:
            raise self._gone(None)
        return bytes(data)

    def _gone(self, error: BaseException | None, how: str = "ended the connection") -> ConnectionDropped:
        seen = self.connection.transport.get_exception() or error
        why = f" ({type(seen).__name__}: {seen})" if seen and str(seen) else ""
        return ConnectionDropped(
            f"{self.connection.target.name} {how}{why}", "look at its console: it may have rebooted"
        )

    @staticmethod
    def _answers(
        batch: Sequence[Command], statuses: Sequence[Sequence[str]], sizes: Sequence[int], body: bytes
    ) -> list[Answer]:
        answers, at = [], 0
        for number, command in enumerate(batch):
            rc, started, ended = map(int, statuses[number])
            middle = at + sizes[2 * number]
            end = middle + sizes[2 * number + 1]
            seconds = (ended - started) / 100
            expired = rc == 137 and seconds >= command.deadline - 0.05
            answers.append(Answer(rc, body[at:middle], body[middle:end], seconds, expired))
            at = end
        return answers


def _script(batch: Sequence[Command]) -> str:
    """The text that runs a batch, of the functions in remote/batch_shell.sh."""
    workers = "".join(_worker(batch, first) for first in range(min(WORKERS, len(batch))))
    shortest = round(100 * min(command.deadline for command in batch))
    numbers = " ".join(str(number) for number in range(1, len(batch) + 1))
    group = f"{{ ulimit -f {_OUTPUT_BLOCKS}\n{workers}validator_done; }} 2>/dev/null & workers=$!"
    return f'{group}\nvalidator_watch {shortest}; wait "$workers"; workers=; validator_frame {numbers}\n'


def _worker(batch: Sequence[Command], first: int) -> str:
    """One worker's commands: every WORKERS-th of the batch, in order."""
    lines = [
        f"validator_run {number + 1} {round(100 * batch[number].deadline)} "
        f"{shlex.quote(_evaluated(batch[number].text))}"
        for number in range(first, len(batch), WORKERS)
    ]
    return f"{{ worker={first}\n" + "\n".join(lines) + "\n} &\n"


def _evaluated(text: str) -> str:
    """What a subshell evaluates for a command: a shell of its own, unless that would do nothing but start a program."""
    if _BASH.search(text):
        return f"command -v bash >/dev/null && exec bash -c {shlex.quote(text)}; exec sh -c {shlex.quote(text)}"
    if _BUILTIN.fullmatch(text):
        return text
    if _PROGRAM.fullmatch(text):
        return f"exec {text}"
    return f"exec sh -c {shlex.quote(text)}"
