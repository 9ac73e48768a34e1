"""Runs checks concurrently to save round trips. Optional: without it checks run one after the other.

plugin               the engine's part in pytest; which checks may change a host, so that their order is kept
scheduler            runs checks concurrently
batches              the commands that are sent at once to a host, with those joined that one process can answer;
                     which commands may change a host
concurrent_items     pytest items as concurrent tasks
pytest_internals     all undocumented parts of pytest that the engine uses
"""

from validator.engine import pytest_internals, scheduler
from validator.engine.plugin import ConcurrentChecks
from validator.engine.scheduler import park, sleep

__all__ = ["ConcurrentChecks", "attempts", "park", "running", "sleep", "unavailable"]


def unavailable() -> str:
    """Why the engine cannot be used; "" if it can."""
    if not scheduler.available():
        return "greenlet is not installed"
    differences = pytest_internals.differences()
    return f"this version of pytest is not supported: {'; '.join(differences)}" if differences else ""


def running() -> bool:
    """Whether checks are running concurrently."""
    return scheduler.active() is not None


def attempts() -> int:
    """How often the commands of the running check were sent."""
    active = scheduler.active()
    return active.task.attempts if active is not None and active.task is not None else 1
