"""A command has a deadline, and an answer has not expired, where nothing else is said."""

from __future__ import annotations

from validator.transport.answer import Answer, Command


def test_defaults() -> None:
    assert Command("true") == Command("true", 60.0)
    assert not Answer(137, b"", b"", 1.0).expired
