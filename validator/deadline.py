"""Limits of time: a check that runs past its deadline is interrupted, and an HTTP request of a boto3 client ends.

The latter is limited from its first byte to the last one of the answer. `wait_until` waits for what happens elsewhere.
"""

from __future__ import annotations

import math
import signal
import threading
import time
from collections.abc import Callable
from typing import Any, TypeVar

_Answer = TypeVar("_Answer")

SURE_SECONDS = 1.0  # so long the alarm is taken to be as it was set: a check can set one of its own
_end = 0.0  # of the running check (time.monotonic()); 0 for none
_alarm = math.inf  # when it comes: at _end or earlier, then it is set again
_set = 0.0  # when it was set


class CheckTimeout(Exception):
    """The check did not complete within its deadline (--check-deadline)."""

    def __init__(self) -> None:
        super().__init__("the check did not complete within its deadline")


def arm(deadline: float) -> None:
    """Raises CheckTimeout in the main thread at `deadline` (time.monotonic()); 0 disarms it."""
    if threading.current_thread() is not threading.main_thread():
        return
    global _end, _alarm
    install()
    _end, _alarm = deadline, math.inf
    if deadline:
        _set_alarm()
    else:
        signal.setitimer(signal.ITIMER_REAL, 0.0)


def install() -> None:
    """Handles the alarm of `move` in this process."""
    signal.signal(signal.SIGALRM, _interrupt)


def move(deadline: float) -> None:
    """`arm` where the alarm is handled already, in the main thread. An alarm that comes too early stays set."""
    global _end
    _end = deadline
    if deadline and (deadline < _alarm or time.monotonic() > _set + SURE_SECONDS):
        _set_alarm()


def pause() -> float:
    """Disarms the deadline and returns the seconds that were left of it, 0 where none was armed."""
    global _end
    left = max(0.001, _end - time.monotonic()) if _end else 0.0
    _end = 0.0
    return left


def resume(seconds: float) -> None:
    """Arms the deadline again with what `pause` returned."""
    if seconds:
        move(time.monotonic() + seconds)


def _set_alarm() -> None:
    global _alarm, _set
    _alarm, _set = _end, time.monotonic()
    signal.setitimer(signal.ITIMER_REAL, max(0.001, _end - _set))


def _interrupt(_signum: int, _frame: object) -> None:
    global _end, _alarm
    _alarm = math.inf
    if _end > time.monotonic():
        _set_alarm()
    elif _end:
        _end = 0.0
        raise CheckTimeout


CALL_SECONDS = 120.0


def limit_requests(client: Any) -> None:
    """Limits every request of a boto3 client. A request that takes longer is a botocore HTTPClientError."""
    endpoint = client._endpoint  # botocore has no public way to its HTTP session
    endpoint.http_session = _Limited(endpoint.http_session)


class _Limited:
    """botocore's HTTP session, each of whose requests has a deadline.

    A request is sent in a thread of its own, which is left behind where its answer does not end: it holds nothing but
    its connection, and does not keep the process from ending.
    """

    def __init__(self, session: Any) -> None:
        self._session = session

    def send(self, request: Any) -> Any:
        answers: list[Any] = []
        errors: list[BaseException] = []

        def send() -> None:
            try:
                answers.append(self._session.send(request))
            except BaseException as error:  # raised in the caller's thread below
                errors.append(error)

        worker = threading.Thread(target=send, name="AWS call", daemon=True)
        worker.start()
        worker.join(CALL_SECONDS)
        if worker.is_alive():
            raise _no_end(request.url)
        if errors:
            raise errors[0]
        return answers[0]

    def close(self) -> None:
        self._session.close()


def _no_end(url: str) -> Exception:
    from botocore.exceptions import HTTPClientError

    class NoEndError(HTTPClientError):
        fmt = 'no complete answer from "{endpoint_url}" within {seconds:.0f} s'

    return NoEndError(endpoint_url=url, seconds=CALL_SECONDS)


def wait_until(condition: Callable[[], _Answer], seconds: float, pause: float = 0.05) -> _Answer:
    """Asks at least once, until the answer is true or the time is over; returns the last answer."""
    end = time.monotonic() + seconds
    while not (answer := condition()) and time.monotonic() < end:
        time.sleep(pause)
    return answer
