"""Answers of a host, what its start tells, and errors of the transport."""

from __future__ import annotations

import inspect
import re
import subprocess

import pytest

from validator.transport import errors, shell
from validator.transport.shell import Answer, Command

# A command has a deadline, and an answer has not expired, where nothing else is said.


def test_defaults() -> None:
    assert Command("true") == Command("true", 60.0)
    assert not Answer(137, b"", b"", 1.0).expired


# How the way to a host fails: the tree in the docstring, and the messages.


def test_docstring_lists_every_error_with_its_kind() -> None:
    drawn = dict(re.findall(r"[├└]── (\w+) .*?(?:\"([\w ]+)\"|never raised)", errors.__doc__ or ""))
    classes = {name: kind for name, kind in vars(errors).items() if inspect.isclass(kind)}
    assert drawn.keys() | {"SshError"} == classes.keys()
    assert {name: classes[name].kind for name, kind in drawn.items() if kind} == {n: k for n, k in drawn.items() if k}


def test_kinds_are_distinct() -> None:
    kinds = [error.kind for error in vars(errors).values() if inspect.isclass(error)]
    assert len(kinds) == len(set(kinds))


def test_message_ends_with_the_hint() -> None:
    assert str(errors.HostRefused("10.0.0.1:22 refuses connections")) == "10.0.0.1:22 refuses connections"
    fault = errors.HostRefused("10.0.0.1:22 refuses connections", "is sshd running?")
    assert str(fault) == "10.0.0.1:22 refuses connections; is sshd running?"
    fault.hint = "and reconnecting failed"
    assert str(fault) == "10.0.0.1:22 refuses connections; and reconnecting failed"


def test_expired_command_is_shown_with_its_last_output() -> None:
    expired = errors.CommandExpired("sleep 100", 0.5)
    assert str(expired) == "command did not complete within 0.5 s: sleep 100"
    assert (expired.command, expired.seconds) == ("sleep 100", 0.5)
    assert str(errors.CommandExpired("make", 60.0, "CC a.o")).endswith("within 60 s: make\nlast output: CC a.o")


def test_long_command_is_shortened_in_the_message() -> None:
    expired = errors.CommandExpired("x" * 500, 1)
    assert str(expired) == f"command did not complete within 1 s: {'x' * 197}..." and expired.command == "x" * 500


def test_expired_command_is_not_a_transport_fault() -> None:
    assert issubclass(errors.CommandExpired, errors.SshError)
    assert not issubclass(errors.CommandExpired, errors.TransportFault)


# What is asked of every host is asked once, and comes back as if each had been asked by itself.


@pytest.mark.parametrize("interpreter", ["dash", "bash"])
def test_constants_equal_the_output_of_their_commands(interpreter: str) -> None:
    out = subprocess.run([interpreter, "-c", shell.ASK], capture_output=True, check=True, timeout=60).stdout
    found = shell.read(out)
    assert set(found) == set(shell.CONSTANT)
    for text, answer in found.items():
        alone = subprocess.run([interpreter, "-c", text], capture_output=True, check=False, timeout=60)
        assert (answer.rc, answer.stdout) == (alone.returncode, alone.stdout), text


def test_program_does_not_read_the_batches_that_follow_it() -> None:
    program = f"{shell.ASK}echo next\n".encode()
    out = subprocess.run(["dash"], input=program, capture_output=True, check=True, timeout=60).stdout
    assert out.endswith(b"\x1enext\n")


WHOLE = b"\x1e" + b"x\n\x1e0\x1e" * len(shell.CONSTANT)


@pytest.mark.parametrize("before", [b"", b"Welcome!\n"], ids=["nothing before", "a word of .bashrc before"])
def test_complete_output_gives_all_constants(before: bytes) -> None:
    assert {answer.stdout for answer in shell.read(before + WHOLE).values()} == {b"x\n"}


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
    assert shell.read(output) == {}
