"""What is asked of every host is asked once, and comes back as if each had been asked by itself."""

from __future__ import annotations

import subprocess

import pytest

from validator import known
from validator.shell import Answer


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_each_answer_is_what_the_command_itself_gives(shell: str) -> None:
    out = subprocess.run([shell, "-c", known.ASK.text], capture_output=True, check=True, timeout=60).stdout
    found = known.read(Answer(0, out, b"", 0.1))
    assert set(found) == set(known.CONSTANT)
    for text, answer in found.items():
        alone = subprocess.run([shell, "-c", text], capture_output=True, check=False, timeout=60)
        assert (answer.rc, answer.stdout) == (alone.returncode, alone.stdout), text


@pytest.mark.parametrize(
    "answer",
    [
        Answer(0, b"", b"", 0.1),
        Answer(0, b"0\nLinux\x1e", b"", 0.1),
        Answer(0, b"0\nx\x1e" * len(known.CONSTANT), b"", 20.0, expired=True),
        Answer(0, b"Welcome!\n0\nx\x1e" + b"0\nx\x1e" * (len(known.CONSTANT) - 1), b"", 0.1),
        Answer(0, b"0\nx\x1e" * len(known.CONSTANT) + b"more\x1e", b"", 0.1),
    ],
)
def test_what_is_not_whole_tells_nothing(answer: Answer) -> None:
    assert known.read(answer) == {}
