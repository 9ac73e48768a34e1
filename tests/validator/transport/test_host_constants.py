"""What is asked of every host is asked once, and comes back as if each had been asked by itself."""

from __future__ import annotations

import subprocess

import pytest

from validator.transport import host_constants


@pytest.mark.parametrize("shell", ["dash", "bash"])
def test_constants_equal_the_output_of_their_commands(shell: str) -> None:
    out = subprocess.run([shell, "-c", host_constants.ASK], capture_output=True, check=True, timeout=60).stdout
    found = host_constants.read(out)
    assert set(found) == set(host_constants.CONSTANT)
    for text, answer in found.items():
        alone = subprocess.run([shell, "-c", text], capture_output=True, check=False, timeout=60)
        assert (answer.rc, answer.stdout) == (alone.returncode, alone.stdout), text


def test_program_does_not_read_the_batches_that_follow_it() -> None:
    program = f"{host_constants.ASK}echo next\n".encode()
    out = subprocess.run(["dash"], input=program, capture_output=True, check=True, timeout=60).stdout
    assert out.endswith(b"\x1enext\n")


WHOLE = b"\x1e" + b"x\n\x1e0\x1e" * len(host_constants.CONSTANT)


@pytest.mark.parametrize("before", [b"", b"Welcome!\n"], ids=["nothing before", "a word of .bashrc before"])
def test_complete_output_gives_all_constants(before: bytes) -> None:
    assert {answer.stdout for answer in host_constants.read(before + WHOLE).values()} == {b"x\n"}


@pytest.mark.parametrize(
    "output",
    [
        b"",
        b"\x1eLinux\n\x1e0\x1e",
        WHOLE.replace(b"0", b"?", 1),
        WHOLE + b"more\x1e",
        WHOLE + b"more",
    ],
)
def test_incomplete_output_gives_no_constants(output: bytes) -> None:
    assert host_constants.read(output) == {}
