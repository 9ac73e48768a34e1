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
    with pytest.raises(deadline.CheckTimeout, match="the check did not complete within its deadline"):
        deadline.arm(time.monotonic() + 0.05)
        time.sleep(30)


def test_deadline_in_the_past_interrupts_at_once() -> None:
    with pytest.raises(deadline.CheckTimeout):  # which takes a moment itself to begin
        deadline.arm(time.monotonic() - 100)
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


def test_alarm_stays_set_for_a_later_deadline() -> None:
    deadline.arm(time.monotonic() + 0.05)
    deadline.move(time.monotonic() + 0.3)
    started = time.monotonic()
    with pytest.raises(deadline.CheckTimeout):
        time.sleep(30)
    assert time.monotonic() - started >= 0.29


def test_paused_deadline_interrupts_when_it_has_resumed() -> None:
    deadline.arm(time.monotonic() + 0.1)
    left = deadline.pause()
    assert 0 < left <= 0.1
    time.sleep(0.2)  # the alarm comes meanwhile
    deadline.resume(left)
    with pytest.raises(deadline.CheckTimeout):
        time.sleep(30)
    assert deadline.pause() == 0.0


def test_alarm_that_a_check_has_cleared_is_set_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deadline, "SURE_SECONDS", 0.0)
    deadline.arm(time.monotonic() + 30)
    signal.setitimer(signal.ITIMER_REAL, 0)
    deadline.move(time.monotonic() + 40)
    assert signal.getitimer(signal.ITIMER_REAL)[0] > 30
