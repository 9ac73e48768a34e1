"""Jobs in threads, side by side: what must be ended when the run is interrupted."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import TypeVar

from gpu_ami import process

_Result = TypeVar("_Result")


class UnderWay:
    """Counts the jobs of a pool that have begun and not ended, in their own threads.

    Ctrl-C while the pool starts a thread leaves a thread that the pool does not know, and no future of its job: the
    run would end before that job has cleaned up.
    """

    def __init__(self) -> None:
        self._lock, self._jobs = threading.Lock(), 0

    def __bool__(self) -> bool:
        return self._jobs > 0

    def run(self, job: Callable[..., _Result], *arguments: object) -> _Result:
        """Calls the job in this thread."""
        with self._lock:
            self._jobs += 1
        try:
            return job(*arguments)
        finally:
            with self._lock:
                self._jobs -= 1

    def end(self) -> None:
        """Ends the processes that the jobs wait for, until no job runs. They know by then that the run is cancelled."""
        while self:  # a thread that only starts now sees that the run is cancelled, and starts nothing
            process.stop_all()  # again, for a thread may have been about to start one
            time.sleep(0.1)
