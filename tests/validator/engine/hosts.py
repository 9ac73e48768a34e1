"""Hosts that answer from a table, and commands in a shell of this machine: for tests of joined commands."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from validator.transport import Answer, Command


class Host:
    """Answers from a table by text; what is not in it, with itself."""

    def __init__(self, **answers: Answer) -> None:
        self.answers = answers
        self.batches: list[list[str]] = []

    def ask(self, commands: Sequence[Command]) -> tuple[list[Answer], int]:
        self.batches.append([command.text for command in commands])
        return [self._answer(command.text) for command in commands], len(self.batches)

    def _answer(self, text: str) -> Answer:
        joint = self.answers.get("joint")
        if joint is not None and ("${Package}" in text or "\n" in text):
            return joint
        return Answer(0, text.encode(), b"", 0.1)


def outcome(answers: Sequence[Answer]) -> list[tuple[int, bytes, bytes, bool]]:
    return [(answer.rc, answer.stdout, answer.stderr, answer.expired) for answer in answers]


def in_shell(commands: Sequence[Command]) -> tuple[list[Answer], int]:
    done = [subprocess.run(["sh", "-c", command.text], capture_output=True, check=False) for command in commands]
    return [Answer(one.returncode, one.stdout, one.stderr, 0.0) for one in done], 1
