"""How a check ends, and what it records for the report beside its verdict.

Failed, or UNPROVEN with a reason; verdicts from what pytest reports of a phase of a check (setup, call, teardown).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from validator.results import Hop, MetricSeries, RunningCheck, Verdict
from validator.transport import TransportFault


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


# Exceptions with which a check says that the image failed it.
_ABOUT_THE_IMAGE = ("AssertionError", "Failed", "CommandExpired", "CheckTimeout")
# The fixtures that a check may use; named when one is misspelt.
FIXTURES = ("host", "plan", "machine", "cloudwatch", "observe")


def judge(check: RunningCheck, report: pytest.TestReport, call: pytest.CallInfo[None], *, is_ours: bool = True) -> None:
    """Records the outcome of one phase. is_ours: whether the check is one that comes with the validator."""
    check.update(seconds=round(check.latest("seconds") + call.duration, 3))
    if report.when == "call" and report.passed:
        if check.latest("attempts") == 1:
            check.update(verdict=Verdict.PASS, message="")
        else:
            message = "passed only after the connection was lost and reopened"
            check.update(verdict=Verdict.FLAKY, message=message)
    elif report.skipped:
        check.update(verdict=Verdict.UNPROVEN, message=_reason(report))
    elif report.failed:
        fault = call.excinfo.value if call.excinfo else None
        lost = isinstance(fault, TransportFault)
        text = f"{fault}" if fault else report.longreprtext
        from validator.cloudwatch import ApiRefused  # imported here: most runs have no use for either
        from validator.schema import did_you_mean

        if isinstance(fault, ApiRefused):  # an error of the account, place or time, not of the image
            check.update(verdict=Verdict.ERROR, message=text)
            return
        if isinstance(fault, pytest.FixtureLookupError):
            near = did_you_mean(fault.argname, FIXTURES)
            message = f"error in the check: fixture {fault.argname!r} not found{near}; known: {', '.join(FIXTURES)}"
            check.update(verdict=Verdict.ERROR, message=message)
            return
        if fault is not None and not lost and _is_of_the_check(call, is_ours):
            where = _line(call, report)
            phase = "in teardown: " if report.when == "teardown" else ""
            message = f"{phase}error in the check{where}: {type(fault).__name__}: {text.strip()}"
            check.update(verdict=Verdict.ERROR, message=message)
            return
        message = f"transport error: {text}" if lost else _message(text, call)
        if report.when == "teardown":
            message = f"in teardown: {message}"
        check.update(verdict=Verdict.UNPROVEN if lost else Verdict.FAIL, message=message)


def _is_of_the_check(call: pytest.CallInfo[None], is_ours: bool) -> bool:
    """Whether an exception says something about the check alone: it asserted nothing about the image.

    testinfra asserts the exit status of its own commands (`run_expect`): of `systemctl is-enabled`, 0 or 1, where
    systemd 255 answers 4 for a unit that does not exist (pytest-testinfra#801).
    """
    assert call.excinfo is not None
    last = call.excinfo.traceback[-1] if call.excinfo.traceback else None
    if last is not None and last.name == "run_expect" and Path(last.path).parent.name == "testinfra":
        return True
    return not is_ours and call.excinfo.type.__name__ not in _ABOUT_THE_IMAGE


def _line(call: pytest.CallInfo[None], report: pytest.TestReport) -> str:
    """` (test_mine.py:12)`: the last line of the check's own file that was reached."""
    name = report.nodeid.partition("::")[0].rpartition("/")[2]
    lines = (
        [entry.lineno + 1 for entry in call.excinfo.traceback if Path(entry.path).name == name] if call.excinfo else []
    )
    return f" ({name}:{lines[-1]})" if lines else ""


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")


def _message(text: str, call: pytest.CallInfo[None]) -> str:
    kind = call.excinfo.type.__name__ if call.excinfo else ""
    text = text.strip()
    return text if kind in _ABOUT_THE_IMAGE else f"{kind}: {text}"
