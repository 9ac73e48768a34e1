"""Joins commands of a batch that one process can answer.

Each command gets the result that it would have had alone; where the joint one does not tell, it is sent alone.

Package queries of a batch as one process.

`host.package(name)` runs one `dpkg-query` for each name, and each reads the whole database: some 10 ms of the host's
CPU time.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from validator.engine import file_attributes
from validator.transport import Answer, Command

# The command of testinfra, with one name and no architecture or pattern: others have output in another form.
_PACKAGE = re.compile(r"dpkg-query -f '(\$\{Status\}(?: \$\{Version\})?)' -W ([a-z0-9][a-z0-9+.-]+)")
_ALL = "dpkg-query -f '${{Package}} ${{Status}} ${{Version}}\\n' -W {names}"
_NAMES = 500  # per command: far below the maximum length of an argument of `sh -c`


@dataclass(frozen=True)
class PackageQueries:
    """A coalesce.Joint. queries: by place, the output format and the name of each query."""

    queries: Mapping[int, tuple[str, str]]
    deadline: float

    @property
    def places(self) -> Sequence[int]:
        return list(self.queries)

    @property
    def command(self) -> Command:
        names = dict.fromkeys(name for _, name in self.queries.values())
        return Command(_ALL.format(names=" ".join(names)), self.deadline)

    def part(self, answer: Answer) -> Mapping[int, Answer]:
        if answer.expired:
            return dict.fromkeys(self.queries, answer)
        if answer.rc not in (0, 1):
            return {}
        states: dict[str, list[tuple[str, str]]] = defaultdict(list)
        for line in answer.stdout.decode(errors="replace").splitlines():
            name, _, rest = line.partition(" ")
            status, _, version = rest.rpartition(" ")
            states[name].append((status, version))
        errors = answer.stderr.splitlines(keepends=True)
        parts = {}
        for place, (form, name) in self.queries.items():
            if len(states[name]) == 1:
                status, version = states[name][0]
                text = form.replace("${Status}", status).replace("${Version}", version)
                parts[place] = Answer(0, text.encode(), b"", answer.seconds)
            elif own := [line for line in errors if line.split()[-1:] == [name.encode()]]:
                parts[place] = Answer(1, b"", own[0], answer.seconds)
        return parts

    def beside(self, answer: Answer) -> Mapping[str, Answer]:
        return {}


def join(commands: Sequence[Command]) -> Iterator[PackageQueries]:
    """The package queries of a batch, if there are several with the same deadline."""
    groups: dict[float, list[tuple[int, tuple[str, str]]]] = defaultdict(list)
    for place, command in enumerate(commands):
        if match := _PACKAGE.fullmatch(command.text):
            groups[command.deadline].append((place, (match[1], match[2])))
    for deadline, queries in groups.items():
        for first in range(0, len(queries), _NAMES):
            few = dict(queries[first : first + _NAMES])
            if len(few) > 1:
                yield PackageQueries(few, deadline)


Execute = Callable[[Sequence[Command]], tuple[list[Answer], int]]


class Joint(Protocol):
    """Several commands of a batch as one. places: theirs in the batch; command: what is sent."""

    @property
    def places(self) -> Sequence[int]: ...

    @property
    def command(self) -> Command: ...

    def part(self, answer: Answer) -> Mapping[int, Answer]:
        """By place: the answer to each command that the joint one tells."""

    def beside(self, answer: Answer) -> Mapping[str, Answer]:
        """By command: answers to commands that were not in the batch and that a check may ask next."""


@dataclass(frozen=True)
class Results:
    """The answers to a batch in order, the number of attempts, and by place what was told beside the answer."""

    answers: list[Answer]
    attempts: int
    beside: Mapping[int, Mapping[str, Answer]]


def execute(commands: Sequence[Command], send: Execute) -> Results:
    """Runs the commands by `send`, with those joined that can be."""
    joints: list[Joint] = [*join(commands), *file_attributes.join(commands)]
    joined = {place for joint in joints for place in joint.places}
    sent = [place for place in range(len(commands)) if place not in joined]
    received, attempts = send([*(commands[place] for place in sent), *(joint.command for joint in joints)])
    answers = dict(zip(sent, received, strict=False))
    beside: dict[int, Mapping[str, Answer]] = {}
    for joint, answer in zip(joints, received[len(sent) :], strict=True):
        answers |= joint.part(answer)
        beside |= dict.fromkeys(joint.places, joint.beside(answer))
    unanswered = [place for place in range(len(commands)) if place not in answers]
    if unanswered:  # a package of two architectures, or an unreadable database: dpkg's own output is needed
        received, more_attempts = send([commands[place] for place in unanswered])
        answers |= dict(zip(unanswered, received, strict=True))
        attempts = max(attempts, more_attempts)
    return Results([answers[place] for place in range(len(commands))], attempts, beside)
