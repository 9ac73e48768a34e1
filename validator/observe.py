"""What a check records for the report beside its verdict, and how it ends: failed, or UNPROVEN with a reason."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from typing import Any, NoReturn

import pytest

from validator.results import Hop, MetricSeries, RunningCheck


def unproven(reason: str) -> NoReturn:
    """Ends the check as UNPROVEN with this reason. Such a check never counts as passed."""
    pytest.skip(reason)


# Reading every file, or all DKMS trees, takes minutes on a slow disk or an emulated machine.
SCAN_SECONDS = 600.0


def output(host: Any, command: str, *args: str, timeout: float | None = None) -> str:
    """Standard output of a command; if the command fails, the check fails with its error output.

    timeout: seconds, if the command may take longer than `--command-deadline`.
    """
    __tracebackhide__ = True
    done = host.run(command, *args, **({"timeout": timeout} if timeout else {}))
    if done.rc != 0:
        text = (done.stderr or done.stdout).strip() or "no output"
        pytest.fail(f"`{done.command.decode()}` exited with status {done.rc}: {text[-500:]}", pytrace=False)
    return str(done.stdout)


class Observe:
    """The fixture `observe`: `observe(observed, planned)` fills the report's two columns."""

    def __init__(self, check: RunningCheck, kept: MutableMapping[str, str] | None = None) -> None:
        self._check = check
        self._kept = {} if kept is None else kept

    def __call__(self, observed: Any, planned: Any = None) -> None:
        self._check.update(observed=observed, planned=planned)

    def same(self, observed: Any, planned: Any, what: str) -> None:
        """Records both values and fails if they differ. what: the name of the compared value in the message."""
        __tracebackhide__ = True
        self(observed, planned)
        if observed != planned:
            pytest.fail(f"{what}: expected {_shown(planned)}, got {_shown(observed)}", pytrace=False)

    def nothing(self, entries: list[Any], what: str) -> None:
        """Fails unless the list is empty; the message has every entry."""
        __tracebackhide__ = True
        self(entries, [])
        if entries:
            pytest.fail(f"{what}: {_shown(entries)}", pytrace=False)

    def fail(self, message: str) -> NoReturn:
        """Fails the check. The message has the expected and the observed value."""
        __tracebackhide__ = True
        pytest.fail(message, pytrace=False)

    def hop(self, name: str, seconds: float) -> None:
        """Records the duration of one stage between the event and CloudWatch, for the report's timeline."""
        self._check.update(hops=(*self._check.record.hops, Hop(name, round(seconds, 3))))

    def series(self, series: Iterable[MetricSeries]) -> None:
        """Records the datapoints of metrics, for the report's curves."""
        self._check.update(series=tuple(series))

    def keep(self, file: str, text: str) -> None:
        """Keeps a text as a file of the host's evidence, which is not collected again where all checks pass."""
        self._kept[file] = text

    def event(self, captured: Mapping[str, object]) -> None:
        """Records the captured event with all its fields for the report."""
        self._check.update(event=captured)


def _shown(value: Any, most: int = 1500) -> str:
    text = ", ".join(str(entry) for entry in value) if isinstance(value, list) and value else repr(value)
    return text if len(text) <= most else f"{text[: most - 3]}..."
