"""Waits of tests for what happens in another process or thread."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from validator.deadline import wait_until

_Answer = TypeVar("_Answer")


def until(condition: Callable[[], _Answer], seconds: float = 30.0, pause: float = 0.02) -> _Answer:
    """Returns the first true answer; fails after so many seconds."""
    answer = wait_until(condition, seconds, pause)
    assert answer, f"not within {seconds:g} s: {answer!r}"
    return answer
