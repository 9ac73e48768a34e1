"""The deadline of a check in this process: a check that runs past it is interrupted."""

from __future__ import annotations

import signal
import threading
import time


class CheckTimeout(Exception):
    """The check did not complete within its deadline (--check-deadline)."""

    def __init__(self) -> None:
        super().__init__("the check did not complete within its deadline")


def arm(deadline: float) -> None:
    """Raises CheckTimeout in the main thread at `deadline` (time.monotonic()); 0 disarms it."""
    if threading.current_thread() is not threading.main_thread():
        return
    install()
    move(deadline)


def install() -> None:
    """Handles the alarm of `move` in this process."""
    signal.signal(signal.SIGALRM, _interrupt)


def move(deadline: float) -> None:
    """`arm` where the alarm is handled already, in the main thread."""
    signal.setitimer(signal.ITIMER_REAL, max(0.001, deadline - time.monotonic()) if deadline else 0.0)


def pause() -> float:
    """Disarms the deadline and returns the seconds that were left of it, 0 where none was armed."""
    if threading.current_thread() is not threading.main_thread():
        return 0.0
    return signal.setitimer(signal.ITIMER_REAL, 0.0)[0]


def resume(seconds: float) -> None:
    """Arms the deadline again with what `pause` returned."""
    if seconds:
        signal.setitimer(signal.ITIMER_REAL, seconds)


def _interrupt(_signum: int, _frame: object) -> None:
    raise CheckTimeout
