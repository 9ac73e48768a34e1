"""The deadline of a check on this side: whatever runs past it is interrupted."""

from __future__ import annotations

import signal
import threading
import time


class CheckTimeout(Exception):
    """A check is past its deadline (--check-deadline)."""

    def __init__(self) -> None:
        super().__init__("the check did not end within its deadline")


def arm(deadline: float) -> None:
    """Raises CheckTimeout in the main thread at `deadline` (time.monotonic()); 0 disarms it."""
    if threading.current_thread() is not threading.main_thread():
        return
    signal.signal(signal.SIGALRM, _interrupt)
    signal.setitimer(signal.ITIMER_REAL, max(0.001, deadline - time.monotonic()) if deadline else 0.0)


def _interrupt(_signum: int, _frame: object) -> None:
    raise CheckTimeout
