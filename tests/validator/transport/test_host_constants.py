"""What is asked of every host is asked once, and comes back as if each had been asked by itself."""

from __future__ import annotations

import subprocess

import pytest

from validator.transport import host_constants
from validator.transport.shell import Answer


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_constants_equal_the_output_of_their_commands(shell: str) -> None:
    out = subprocess.run([shell, "-c", host_constants.ASK.text], capture_output=True, check=True, timeout=60).stdout
    found = host_constants.read(Answer(0, out, b"", 0.1))
    assert set(found) == set(host_constants.CONSTANT)
    for text, answer in found.items():
        alone = subprocess.run([shell, "-c", text], capture_output=True, check=False, timeout=60)
        assert (answer.rc, answer.stdout) == (alone.returncode, alone.stdout), text


WHOLE = b"\x1e" + b"x\n\x1e0\x1e" * len(host_constants.CONSTANT)


def test_complete_output_gives_all_constants() -> None:
    assert {answer.stdout for answer in host_constants.read(Answer(0, WHOLE, b"", 0.1)).values()} == {b"x\n"}


@pytest.mark.parametrize(
    "answer",
    [
        Answer(0, b"", b"", 0.1),
        Answer(0, b"\x1eLinux\n\x1e0\x1e", b"", 0.1),
        Answer(0, WHOLE, b"", 20.0, expired=True),
        Answer(0, b"Welcome!\n" + WHOLE, b"", 0.1),
        Answer(0, WHOLE.replace(b"0", b"?", 1), b"", 0.1),
        Answer(0, WHOLE + b"more\x1e", b"", 0.1),
        Answer(0, WHOLE + b"more", b"", 0.1),
    ],
)
def test_incomplete_output_gives_no_constants(answer: Answer) -> None:
    assert host_constants.read(answer) == {}
