"""How the way to a host fails: the tree in the docstring, and the messages."""

from __future__ import annotations

import inspect
import re

from validator.transport import errors


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
