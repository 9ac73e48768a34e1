"""Joins commands of a batch that one process can answer.

Each command gets the result that it would have had alone; where the joint one does not tell, it is sent alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from validator.engine import file_attributes, package_queries
from validator.transport import Answer, Command

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
    joints: list[Joint] = [*package_queries.join(commands), *file_attributes.join(commands)]
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
