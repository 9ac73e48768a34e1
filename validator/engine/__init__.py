"""Many checks, few round trips. Can be deleted: without it checks run one after the other, slower.

plugin               the engine's part in pytest
scheduler            runs checks concurrently and sends their commands in batches
concurrent_items     pytest items as concurrent tasks
pytest_internals     everything of pytest that the engine uses and that pytest does not document
mutation             which checks may change a host, so that these keep their order
commands             which shell commands may change a host
coalesce             questions of one batch that one process answers
"""

from validator.engine import pytest_internals, scheduler
from validator.engine.plugin import ConcurrentChecks
from validator.engine.scheduler import sleep

__all__ = ["ConcurrentChecks", "attempts", "running", "sleep", "unavailable"]


def unavailable() -> str:
    """Why the engine cannot be used here; "" where it can."""
    if not scheduler.available():
        return "greenlet is not installed"
    differences = pytest_internals.differences()
    return f"this version of pytest is not supported: {'; '.join(differences)}" if differences else ""


def running() -> bool:
    """Whether checks run concurrently just now."""
    return scheduler.active() is not None


def attempts() -> int:
    """How often the commands of the check that runs now had to be sent."""
    active = scheduler.active()
    return active.task.attempts if active is not None and active.task is not None else 1
