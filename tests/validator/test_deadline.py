"""The alarm that ends a check past its deadline."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator

import pytest

from validator import deadline


@pytest.fixture(autouse=True)
def alarm() -> Iterator[None]:
    """The handler and the timer of this process are as before when the test has ended."""
    handler = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, handler)


def test_code_past_the_deadline_is_interrupted() -> None:
    deadline.arm(time.monotonic() + 0.05)
    with pytest.raises(deadline.CheckTimeout, match="the check did not complete within its deadline"):
        time.sleep(30)


def test_deadline_in_the_past_interrupts_at_once() -> None:
    deadline.arm(time.monotonic() - 100)
    with pytest.raises(deadline.CheckTimeout):
        time.sleep(30)


def test_zero_disarms() -> None:
    deadline.arm(time.monotonic() + 30)
    assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 30
    deadline.arm(0)
    assert signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)


def test_other_threads_set_no_alarm() -> None:
    errors: list[BaseException] = []

    def arm() -> None:
        try:
            deadline.arm(time.monotonic() + 30)
        except BaseException as error:  # signal.signal raises ValueError outside the main thread
            errors.append(error)

    thread = threading.Thread(target=arm)
    thread.start()
    thread.join()
    assert errors == [] and signal.getitimer(signal.ITIMER_REAL) == (0.0, 0.0)
