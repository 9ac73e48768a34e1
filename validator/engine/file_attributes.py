"""All attributes of a file by one `stat`.

`host.file(path)` runs one `stat` for each attribute, and a check asks for them one after the other: owner, group and
mode take three round trips. The first of these commands asks for the others too. A check that asks for them at once
gets what its first one has told (scheduler.py).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from validator.transport import Answer, Command

# The command of testinfra: one attribute, and a path as shlex quotes it.
_STAT = re.compile(r"stat -Lc %([UuGgaYsi]) ([\w./:,+@%=-]+|'[^'\n]*')")
_NUMBERS = "ugaYsi"
_NAMES = "UG"  # asked only with another of them: who looks them up may be a directory service that does not answer


@dataclass(frozen=True)
class FileAttributes:
    """A coalesce.Joint. asked: by place, the attribute (a format letter of stat); letters: those that are sent."""

    asked: Mapping[int, str]
    path: str
    deadline: float

    @property
    def places(self) -> Sequence[int]:
        return list(self.asked)

    @property
    def letters(self) -> str:
        return _NUMBERS + (_NAMES if set(_NAMES) & set(self.asked.values()) else "")

    @property
    def command(self) -> Command:
        form = "\n".join(f"%{letter}" for letter in self.letters)
        return Command(f"stat -Lc '{form}' {self.path}", self.deadline)

    def part(self, answer: Answer) -> Mapping[int, Answer]:
        if answer.rc == 1 and not answer.stdout:  # there is no such file: any of them says so in the same words
            return dict.fromkeys(self.asked, answer)
        told = self._told(answer)
        return {place: told[letter] for place, letter in self.asked.items() if letter in told}

    def beside(self, answer: Answer) -> Mapping[str, Answer]:
        return {f"stat -Lc %{letter} {self.path}": told for letter, told in self._told(answer).items()}

    def _told(self, answer: Answer) -> Mapping[str, Answer]:
        values = answer.stdout.split(b"\n")
        if answer.rc != 0 or answer.stderr or len(values) != len(self.letters) + 1 or values[-1]:
            return {}
        return {
            letter: Answer(0, value + b"\n", b"", answer.seconds)
            for letter, value in zip(self.letters, values, strict=False)
        }


def join(commands: Sequence[Command]) -> Iterator[FileAttributes]:
    """The attributes that a batch asks of each file."""
    files: dict[tuple[str, float], dict[int, str]] = defaultdict(dict)
    for place, command in enumerate(commands):
        if match := _STAT.fullmatch(command.text):
            files[match[2], command.deadline][place] = match[1]
    for (path, deadline), asked in files.items():
        yield FileAttributes(asked, path, deadline)
