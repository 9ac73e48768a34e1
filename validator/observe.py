"""What a check says of itself beside its verdict: values for the report, and the reason why it could not judge."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NoReturn

import pytest

from validator.results import Hop, RunningCheck


def unproven(reason: str) -> NoReturn:
    """Ends a check that lacks what it needs: UNPROVEN with this reason, never green."""
    pytest.skip(reason)


# Reading every file, or all of DKMS's trees, takes minutes where the disk is slow or the machine is emulated.
SCAN_SECONDS = 600.0


def output(host: Any, command: str, *args: str, timeout: float | None = None) -> str:
    """Standard output of a command that must succeed; the check fails with what the command said.

    timeout: seconds, where the command may take longer than others (`--command-deadline`).
    """
    __tracebackhide__ = True
    done = host.run(command, *args, **({"timeout": timeout} if timeout else {}))
    if done.rc != 0:
        said = (done.stderr or done.stdout).strip() or "no output"
        pytest.fail(f"`{done.command.decode()}` ended with {done.rc}: {said[-500:]}", pytrace=False)
    return str(done.stdout)


class Observe:
    """The fixture `observe`: `observe(observed, planned)` fills the report's two columns."""

    def __init__(self, check: RunningCheck) -> None:
        self._check = check

    def __call__(self, observed: Any, planned: Any = None) -> None:
        self._check.update(observed=observed, planned=planned)

    def same(self, observed: Any, planned: Any, what: str) -> None:
        """Records both and fails where they differ; `what` names the thing in the message."""
        __tracebackhide__ = True
        self(observed, planned)
        if observed != planned:
            pytest.fail(f"{what}: found {_shown(observed)}, expected {_shown(planned)}", pytrace=False)

    def nothing(self, found: list[Any], what: str) -> None:
        """Fails with every entry of `found`, of which there must be none."""
        __tracebackhide__ = True
        self(found, [])
        if found:
            pytest.fail(f"{what}: {_shown(found)}", pytrace=False)

    def fail(self, message: str) -> NoReturn:
        """The check's promise is broken; the message says what was seen and what was expected."""
        __tracebackhide__ = True
        pytest.fail(message, pytrace=False)

    def hop(self, name: str, seconds: float) -> None:
        """One stage of a way that an event took, for the report's timeline."""
        self._check.update(hops=(*self._check.record.hops, Hop(name, round(seconds, 3))))

    def event(self, captured: Mapping[str, object]) -> None:
        """The event that was captured, with all its fields, for the report."""
        self._check.update(event=captured)


def _shown(value: Any, most: int = 1500) -> str:
    text = ", ".join(str(entry) for entry in value) if isinstance(value, list) and value else repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
