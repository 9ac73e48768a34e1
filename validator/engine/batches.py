"""Batches of commands: what the checks that wait for a host ask of one of its shells, and the answers to each."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, Protocol, TypeVar

from validator.engine import coalesce, commands
from validator.transport import Answer, Command, SshError, backend, shell

# Duplicates of these commands in a batch run once. Other commands, or any with shell syntax, may have an effect.
_PURE = re.compile(
    r"(?:/(?:usr/)?s?bin/)?(test|stat|cat|ls|readlink|realpath|getent|id|uname|grep|find|head|tail|wc|md5sum|sha256sum|dpkg-query|modinfo"
    r"|rpm -q|command -v|sysctl -n|apt-mark showhold"
    r"|systemctl (is-active|is-enabled|is-failed|is-system-running|show|cat|list-\S+))"
    r"( [^;&|<>$`\n]*)?"
    r"|nvidia-smi (-L|-q|-q -x|topo -m|--version|--query-gpu=[\w.,]+ --format=[\w,]+)|ldconfig -p|modprobe --showconfig"
)


Question = tuple[backend.HostLink, bool, str]  # host, whether root asks, command


def is_pure(request: backend.Request) -> bool:
    """Whether a command only reads, so that one answer serves all who ask it at the same time."""
    return request.pure or _PURE.fullmatch(request.command.text) is not None


def question(request: backend.Request) -> Question:
    """What a request asks, whatever its deadline."""
    return request.link, request.root, request.command.text


class Asker(Protocol):
    """A check that waits for the answer to its command. live: it changes its host."""

    request: backend.Request | None
    live: bool


_Asker = TypeVar("_Asker", bound=Asker)


@dataclass
class Batch(Generic[_Asker]):
    """The commands of one batch to a shell of a host, and the answers or the transport error of all."""

    link: backend.HostLink
    root: bool
    tasks: list[_Asker]
    commands: list[Command] = field(default_factory=list)
    slots: list[int | None] = field(default_factory=list)  # index of each task's answer; None for a constant
    asks: bool = False  # whether the host's constants are not known yet: its shell says them when it starts
    answers: list[Answer] = field(default_factory=list)
    beside: Mapping[int, Mapping[str, Answer]] = field(default_factory=dict)  # by slot; see coalesce.Results
    attempts: int = 1
    fault: SshError | None = None

    def compose(self) -> None:
        self.asks = self.link.fault is None and self.link.known(self.root) is None
        places: dict[str, int] = {}
        self.slots = [self._slot(task, places) for task in self.tasks]

    def _slot(self, task: _Asker, places: dict[str, int]) -> int | None:
        assert task.request is not None
        command = task.request.command
        if self.asks and command.text in shell.CONSTANT:
            return None
        if command.text in places and self.commands[places[command.text]].deadline >= command.deadline:
            return places[command.text]
        if is_pure(task.request):
            places[command.text] = len(self.commands)
        self.commands.append(command)
        return len(self.commands) - 1


def execute(batches: Sequence[Batch[Any]]) -> None:
    """Sends the batches to their host, one after the other. A batch that may change it is not sent again."""
    for batch in batches:
        try:
            resend = not any(task.live for task in batch.tasks) and not any(
                commands.changes(command.text) for command in batch.commands
            )
            send = functools.partial(batch.link.execute, root=batch.root, resend=resend)
            results = coalesce.execute(batch.commands, send)
            batch.answers, batch.attempts, batch.beside = results.answers, results.attempts, results.beside
        except SshError as fault:
            batch.fault = fault
