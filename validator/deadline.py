"""The deadline of a check in this process: a check that runs past it is interrupted."""

from __future__ import annotations

import math
import signal
import threading
import time

_SURE_SECONDS = 1.0  # so long the alarm is taken to be as it was set: a check can set one of its own
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
    if deadline and (deadline < _alarm or time.monotonic() > _set + _SURE_SECONDS):
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
