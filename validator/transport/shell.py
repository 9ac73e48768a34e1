"""One long-lived `sh` on a host that runs batches of commands, so that one SSH execution serves all of them.

A batch is sent as shell text. The reply is one frame: dots while the host is alive, a header with exit status, times
and output sizes of every command, then the outputs as bytes. The commands of a batch run in parallel in a few workers,
without input; their outputs go to a directory in memory, which is removed when the shell exits. One watchdog per batch
enforces all deadlines: `timeout` would cost one more process for each command, and most commands are a single process.
A command that exceeds its deadline is killed with everything that it started: its descendants, and all processes with
its mark in their environment.

Commands that testinfra runs on every host first, and whose results do not change during a run.

A shell runs them when it starts; later requests are answered from their output.
"""

from __future__ import annotations

import contextlib
import re
import secrets
import shlex
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from validator import remote
from validator.deadline import CheckTimeout
from validator.transport import budget
from validator.transport.errors import BudgetSpent, CommandExpired, ConnectionDropped, TransportFault
from validator.transport.ssh import OUTPUT_BYTES, Connection

if TYPE_CHECKING:
    import paramiko

    from validator.transport.image_files import Channel, Entered


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


ASK = remote.text("host_constants")
CONSTANT = tuple(line.removeprefix("ask ") for line in ASK.splitlines() if line.startswith("ask "))
_SEPARATOR = b"\x1e"


def read(output: bytes) -> Mapping[str, Answer]:
    """The answer to each command, from the output of ASK; empty if that is incomplete.

    What a login script prints may come before it.
    """
    _, *records = output.split(_SEPARATOR)
    if len(records) != 2 * len(CONSTANT) + 1 or records[-1]:
        return {}
    outputs = dict(zip(CONSTANT, zip(records[::2], records[1::2], strict=False), strict=False))
    if not all(rc.isdigit() for _, rc in outputs.values()):
        return {}
    return {text: Answer(int(rc), out, b"", 0.0) for text, (out, rc) in outputs.items()}


WORKERS = 4
_CHUNK = 1 << 16
SLACK_SECONDS = 15.0  # after a command's deadline, for the host to kill it and to answer
START_SECONDS = 60.0  # of the shell, with what it says of the host (py)
_FRAME_BYTES = 4 * OUTPUT_BYTES  # of all outputs of a batch
_HEADER_BYTES = 16 << 20  # before the outputs: what a login script prints, and the answers to constant commands

# A command of one word and plain arguments, for which a shell of its own would make no difference.
_PLAIN = r"(?: (?:[\w./:,+@%=-]|'[^']*')+)*"
BUILTIN = re.compile(rf"(?:test|command -v|echo|true|:){_PLAIN}")
_PROGRAM = re.compile(
    rf"(?:stat|cat|ls|readlink|realpath|getent|id|uname|grep|find|head|tail|wc|md5sum|sha256sum|dpkg-query|dpkg|rpm"
    rf"|modinfo|sysctl|systemctl|/sbin/sysctl|/usr/sbin/sysctl|nvidia-smi){_PLAIN}"
)
# Syntax that only bash has, or that means something else in a POSIX shell: login shells are usually bash.
_BASH = re.compile(
    r"\[\[|<<<|[<>]\(|&>|\|&|(?<!\$)\(\(|\$['\"]|\{[^{}\s;]*(?:\.\.|,)[^{}\s;]*\}|\$\{!|\$\{\w+(?:\[|\^|,|/|:[\d ])"
    r"|\becho\s+-\w*e|\s==\s|\bpipefail\b|\bread\s+-[^r\s]|\btype\s+-|\bprintf\s+(?:-v|'?%q)|\bexport\s+-f"
    r"|\$\{?(?:BASH\w*|RANDOM|SECONDS|EUID|UID|HOSTNAME|OSTYPE|PIPESTATUS|GROUPS|FUNCNAME|LINENO|SHELLOPTS|SHLVL)\b"
    r"|(?:^|[;&|({\n]|\b(?:then|do|else))\s*(?:source|function|declare|typeset|shopt|mapfile|readarray|let|pushd|popd"
    r"|compgen|disown|enable|time|coproc|select|set\s+[-+]o|ulimit\s+-[^fn]|trap\b.*\b(?:ERR|DEBUG|RETURN))\b"
)

_END_SECONDS = 3.0
_KILLED = 137  # exit status of a shell's command that SIGKILL ended
_TOO_MUCH = b"validator: killed, it wrote more than %d MiB of output\n" % (OUTPUT_BYTES >> 20)


class NotRoot(TransportFault):
    """`sudo -n sh` did not start a root shell."""

    kind = "sudo"


class Shell:
    """An `sh` of the login user or, with `root`, of root by one `sudo -n sh`."""

    def __init__(self, connection: Connection | Entered, *, root: bool = False) -> None:
        self.connection = connection
        self.batches = 0
        self.commands = 0
        self.frame_mark = f"v{secrets.token_hex(8)}"
        self._buffer = b""
        self._ready = False
        self.constants: Mapping[str, Answer] = {}  # of the host (py), once it is ready
        self._busy = False  # a batch is running
        self._until = time.monotonic() + START_SECONDS
        self._fault: TransportFault | None = None
        self.root = root
        self._command = "sudo -n sh" if root and connection.target.user != "root" else "sh"
        self.ssh_channel: paramiko.Channel | Channel = connection.open(f"exec {self._command}")
        # Its reply is not awaited here: the first batch is sent directly after it.
        functions = f"{remote.text('kill_marked')}{remote.text('batch_shell')}"
        ready = "printf '\\n%s ready\\n' \"$mark\"\n"
        program = f"mark={self.frame_mark} limit={OUTPUT_BYTES}\n{functions}{ASK}{ready}"
        try:
            self.ssh_channel.sendall(program.encode())
        except Exception as error:
            raise self._dropped(error) from error

    def wait_until_ready(self) -> None:
        """Waits until the host has started the shell. Raises NotRoot or ConnectionDropped."""
        if self._fault is not None:
            raise self._fault
        if self._ready:
            return
        try:
            self._line_with_mark(time.monotonic() + START_SECONDS)
        except (ConnectionDropped, CommandExpired) as error:
            self.ssh_channel.settimeout(1.0)
            stderr = ""
            with contextlib.suppress(OSError):
                stderr = self.ssh_channel.recv_stderr(4096).decode(errors="replace").strip()
            self.ssh_channel.close()
            if not self.connection.alive:
                raise
            kind = NotRoot if self.root else ConnectionDropped
            hint = f"{self.connection.target.user} needs sudo without a password" if self.root else "is /bin/sh there?"
            name = self.connection.target.name
            self._fault = kind(f"{name}: `{self._command}` did not start a shell ({stderr or error})", hint)
            raise self._fault from error
        self.constants = read(self._before_mark)
        self._ready = True

    def execute(self, batch: Sequence[Command]) -> list[Answer]:
        """Runs the commands in parallel; answers in order. ConnectionDropped if the host stops answering."""
        if not batch or self._fault is not None:
            self.wait_until_ready()
            return []
        script = batch_script(batch)
        self.batches += 1
        self.commands += len(batch)
        patience = max(command.deadline for command in batch) + 1 + SLACK_SECONDS
        self._until = time.monotonic() + _longest(batch)
        self._busy = True
        try:
            self._send(script.encode(), patience)
        except CheckTimeout:
            raise
        except (
            Exception
        ) as error:  # OSError, EOFError or SSHException: paramiko has no one class for a broken connection
            self.wait_until_ready()  # its error is more precise
            raise self._dropped(error) from error
        self.wait_until_ready()
        statuses, sizes = self._header(len(batch), patience)
        self._until = time.monotonic() + SLACK_SECONDS + budget.answer_seconds(sum(sizes))
        body = self._read(sum(sizes), patience)
        self._busy = False
        return list(self._answers(batch, statuses, sizes, body))

    def close(self) -> None:
        """Ends the shell and the commands that it still runs, which sshd would not signal when the channel closes."""
        if self._busy and isinstance(self.connection, Connection) and self.connection.alive:
            as_root = "sudo -n " if self._command.startswith("sudo") else ""
            program = f"{remote.text('kill_marked')}validator_kill_marked '{self.frame_mark}-.*'"
            with contextlib.suppress(Exception):
                self.connection.run(f"{as_root}sh -c {shlex.quote(program)}", _END_SECONDS)
        self.ssh_channel.close()

    def _send(self, data: bytes, patience: float) -> None:
        view = memoryview(data)
        while view:
            self.ssh_channel.settimeout(min(patience, self._left()))
            view = view[self.ssh_channel.send(bytes(view[:_CHUNK])) :]

    def _left(self) -> float:
        """Seconds until the batch must be over, however alive the host is. BudgetSpent: it must be."""
        left = self._until - time.monotonic()
        if left > 0:
            return left
        raise BudgetSpent(
            f"{self.connection.target.name} keeps the connection alive, and does not complete its answer: its commands"
            " had their deadlines, and what it sends comes at less than"
            f" {budget.SLOWEST_BYTES_PER_SECOND >> 10} KiB/s"
        )

    def _header(self, count: int, patience: float) -> tuple[list[list[str]], list[int]]:
        self._line_with_mark(time.monotonic() + patience, patience)
        lines = self._before_mark.split(b"\n")[-3 * count - 1 : -1]
        statuses = [line.decode(errors="replace").split() for line in lines[:count]]
        sizes = [int(line) for line in lines[count:] if len(line) < 12 and line.isdigit()]
        numbers = [number for status in statuses for number in status]
        if len(sizes) != 2 * count or any(len(status) != 3 for status in statuses) or not all(map(_is_number, numbers)):
            raise self._dropped(RuntimeError("malformed reply"))
        if sum(sizes) > _FRAME_BYTES:  # our watchdog there kills a command that writes more than OUTPUT_BYTES
            raise self._dropped(RuntimeError(f"a reply of {sum(sizes):,} bytes"))
        return statuses, sizes

    def _line_with_mark(self, until: float, patience: float = 0.0) -> str:
        mark = f"\n{self.frame_mark} ".encode()
        while True:
            start = self._buffer.find(mark)
            end = self._buffer.find(b"\n", start + 1) if start >= 0 else -1
            if end >= 0:
                line = self._buffer[start + 1 : end].decode(errors="replace")
                self._before_mark, self._buffer = self._buffer[:start], self._buffer[end + 1 :]
                return line
            if len(self._buffer) > _HEADER_BYTES:
                raise self._dropped(RuntimeError(f"more than {_HEADER_BYTES >> 20} MiB without a reply"))
            # A dot is sent when a command ends: while dots arrive, the host is alive.
            self._buffer += self._receive(until)
            until = max(until, time.monotonic() + patience)

    def _read(self, size: int, patience: float) -> bytes:
        parts, received = [self._buffer[:size]], min(size, len(self._buffer))
        self._buffer = self._buffer[size:]
        while received < size:
            data = self._receive(time.monotonic() + patience)
            parts.append(data[: size - received])
            self._buffer = data[size - received :]
            received += len(parts[-1])
        return b"".join(parts)

    def _receive(self, until: float) -> bytes:
        started = time.monotonic()
        self.ssh_channel.settimeout(max(0.05, min(until - started, self._left())))
        try:
            data = self.ssh_channel.recv(1 << 18)
        except TimeoutError as error:
            raise self._dropped(error, "stopped answering") from error
        except CheckTimeout:
            raise
        except Exception as error:
            raise self._dropped(error) from error
        finally:
            self.connection.budget.charge(self.connection.target.name, seconds=time.monotonic() - started)
        if not data:
            raise self._dropped(None)
        self.connection.budget.charge(self.connection.target.name, bytes=len(data))
        return bytes(data)

    def _dropped(self, error: BaseException | None, how: str = "closed the connection") -> ConnectionDropped:
        cause = self.connection.transport.get_exception() or error
        why = f" ({type(cause).__name__}: {cause})" if cause and str(cause) else ""
        return ConnectionDropped(
            f"{self.connection.target.name} {how}{why}", "look at its console: it may have rebooted"
        )

    @staticmethod
    def _answers(
        batch: Sequence[Command], statuses: Sequence[Sequence[str]], sizes: Sequence[int], body: bytes
    ) -> list[Answer]:
        answers, start = [], 0
        for number, command in enumerate(batch):
            rc, started, ended = map(int, statuses[number])
            middle = start + sizes[2 * number]
            end = middle + sizes[2 * number + 1]
            seconds = (ended - started) / 100
            if max(middle - start, end - middle) > OUTPUT_BYTES:
                stderr = body[middle:end][:OUTPUT_BYTES] + b"\n" + _TOO_MUCH
                answers.append(Answer(_KILLED, body[start:middle][:OUTPUT_BYTES], stderr, seconds, False))
                start = end
                continue
            expired = rc == _KILLED and seconds >= command.deadline - 0.05
            answers.append(Answer(rc, body[start:middle], body[middle:end], seconds, expired))
            start = end
        return answers


def _longest(batch: Sequence[Command]) -> float:
    """Seconds after which even a host that runs one after the other, each to its deadline, has answered."""
    return START_SECONDS + SLACK_SECONDS + sum(command.deadline + 1 for command in batch)


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) < 16


def batch_script(batch: Sequence[Command]) -> str:
    """The shell text that runs a batch with the functions of onhost/batch_shell.sh."""
    lines = _lines(batch)
    workers = "".join(
        f"{{ worker={number}\n" + "\n".join(lines[number::WORKERS]) + "\n} &\n"
        for number in range(min(WORKERS, len(lines)))
    )
    shortest = round(100 * min(command.deadline for command in batch))
    numbers = " ".join(str(number) for number in range(1, len(batch) + 1))
    group = f"{{ {workers}validator_done; }} 2>/dev/null & workers=$!"
    return (
        f'validator_begin; {group}\nvalidator_watch {shortest}; wait "$workers"; workers=; validator_frame {numbers}\n'
    )


def _lines(batch: Sequence[Command]) -> list[str]:
    """What the workers run: a line for each command; one for those that start no process and have the same deadline."""
    together: dict[int, list[str]] = defaultdict(list)
    lines = []
    for number, command in enumerate(batch, 1):
        text, deadline = shlex.quote(in_own_shell(command.text)), round(100 * command.deadline)
        if BUILTIN.fullmatch(command.text):
            together[deadline].append(f"{number} {text}")
        else:
            lines.append(f"validator_run {number} {deadline} {text}")
    return [*(f"validator_run_together {deadline} {' '.join(pairs)}" for deadline, pairs in together.items()), *lines]


def in_own_shell(text: str) -> str:
    """The text that a subshell evaluates for a command. It starts another shell only if the command needs one."""
    if _BASH.search(text):
        return f"command -v bash >/dev/null && exec bash -c {shlex.quote(text)}; exec sh -c {shlex.quote(text)}"
    if BUILTIN.fullmatch(text):
        return text
    if _PROGRAM.fullmatch(text):
        return f"exec {text}"
    return f"exec sh -c {shlex.quote(text)}"
