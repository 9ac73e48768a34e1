"""How a check ends, and what it records for the report beside its verdict.

It fails, or is UNPROVEN with a reason. Verdicts follow from what pytest reports of a check's setup, call and teardown.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any, NoReturn

import pytest

from validator.results import TRANSPORT_ERROR, Hop, MetricSeries, RunningCheck, Verdict
from validator.transport import TransportFault


def unproven(reason: str) -> NoReturn:
    """Ends the check as UNPROVEN with this reason. Such a check never counts as passed."""
    pytest.skip(reason)


# Reading every file, or all DKMS trees, takes minutes on a slow disk or an emulated machine.
SCAN_SECONDS = 600.0


_GONE = ": No such file or directory"


def output(host: Any, command: str, *args: str, timeout: float | None = None, is_walk: bool = False) -> str:
    """Standard output of a command; if the command fails, the check fails with its error output.

    timeout: seconds, if the command may take longer than `--command-deadline`. is_walk: a `find`, which ends with 1
    where a temporary file or folder goes while it walks (its -ignore_readdir_race is of files alone): no failure.
    """
    __tracebackhide__ = True
    done = host.run(command, *args, **({"timeout": timeout} if timeout else {}))
    if is_walk and done.rc == 1 and done.stderr and all(line.endswith(_GONE) for line in done.stderr.splitlines()):
        return str(done.stdout)
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
_ABOUT_THE_IMAGE = ("AssertionError", "Failed", "CommandExpired", "BudgetSpent", "CheckTimeout")
# The fixtures that a check may use; named when one is misspelt.
FIXTURES = ("host", "plan", "machine", "cloudwatch", "observe")


def judge(check: RunningCheck, report: pytest.TestReport, call: pytest.CallInfo[None], *, is_ours: bool = True) -> None:
    """Records the outcome of one phase, or of a subtest. is_ours: whether the check comes with the validator.

    Several phases and subtests of a check may fail: the worst verdict stays, and the message of each failure.
    """
    check.update(seconds=round(check.latest("seconds") + call.duration, 3))
    if report.when == "call" and report.passed:
        if check.latest("attempts") == 1:
            _settle(check, Verdict.PASS, "")
        else:
            _settle(check, Verdict.FLAKY, "passed only after the connection was lost and reopened")
    elif report.skipped:
        _settle(check, Verdict.UNPROVEN, _reason(report, call))
    elif report.failed:
        verdict, message = _failure(report, call, is_ours)
        _settle(check, verdict, f"in teardown: {message}" if report.when == "teardown" else message)


_WORST_FIRST = (Verdict.FAIL, Verdict.ERROR, Verdict.UNPROVEN, Verdict.FLAKY, Verdict.PASS)


def _settle(check: RunningCheck, verdict: Verdict, message: str) -> None:
    """Keeps the worst verdict of a check, and the message of every failure."""
    earlier, told = check.latest("verdict"), check.latest("message")
    if check.judged and _WORST_FIRST.index(earlier) <= _WORST_FIRST.index(verdict):
        verdict, message, told = earlier, told, message
    failures = check.judged and verdict in (Verdict.FAIL, Verdict.ERROR)
    check.update(verdict=verdict, message="\n".join(filter(None, (message, told))) if failures else message)
    check.judged = True


def _failure(report: pytest.TestReport, call: pytest.CallInfo[None], is_ours: bool) -> tuple[Verdict, str]:
    """Verdict and message of a phase that failed."""
    from validator.cloudwatch import ApiRefused  # imported here: most runs have no use for either
    from validator.schema import did_you_mean

    fault = call.excinfo.value if call.excinfo else None
    if fault is None:  # pytest itself decided: an expected failure did not happen
        return Verdict.FAIL, report.longreprtext.replace("[XPASS(strict)]", "passed, but is marked xfail(strict):")
    text = str(fault).strip()
    if isinstance(fault, TransportFault):
        return Verdict.UNPROVEN, f"{TRANSPORT_ERROR}{text}"
    if isinstance(fault, ApiRefused):  # an error of the account, place or time, not of the image
        return Verdict.ERROR, text
    if isinstance(fault, pytest.FixtureLookupError):
        near = did_you_mean(fault.argname, FIXTURES)
        known = ", ".join(FIXTURES)
        return Verdict.ERROR, f"error in the check: fixture {fault.argname!r} not found{near}; known: {known}"
    if _is_of_the_check(call, is_ours):
        return Verdict.ERROR, f"error in the check{_line(call, report)}: {type(fault).__name__}: {text}"
    return Verdict.FAIL, _message(text, call)


def _is_of_the_check(call: pytest.CallInfo[None], is_ours: bool) -> bool:
    """Whether an exception says something about the check alone: it asserted nothing about the image."""
    assert call.excinfo is not None
    names = [entry.name for entry in call.excinfo.traceback]
    if _of_testinfra(call) or "async_fail" in names:  # pytest does not run `async def`
        return True
    return not is_ours and call.excinfo.type.__name__ not in _ABOUT_THE_IMAGE


def _of_testinfra(call: pytest.CallInfo[None]) -> bool:
    """Whether a module of testinfra asserted the exit status of a command of its own (`run_expect`, `run_test`).

    Of `systemctl is-enabled`, 0 or 1: systemd 255 answers 4 for a unit that does not exist (pytest-testinfra#801). A
    check that calls them itself asserts something about the image.
    """
    assert call.excinfo is not None
    callers = [(Path(entry.path), entry.name) for entry in call.excinfo.traceback]
    if not callers or callers[-1][1] != "run_expect":
        return False
    while callers and callers[-1][1] in ("run_expect", "run_test") and callers[-1][0].name == "host.py":
        callers.pop()
    return bool(callers) and "testinfra" in callers[-1][0].parts


def _line(call: pytest.CallInfo[None], report: pytest.TestReport) -> str:
    """` (test_mine.py:12)`: the last line of the check's own file that was reached."""
    name = report.nodeid.partition("::")[0].rpartition("/")[2]
    lines = (
        [entry.lineno + 1 for entry in call.excinfo.traceback if Path(entry.path).name == name] if call.excinfo else []
    )
    return f" ({name}:{lines[-1]})" if lines else ""


def _reason(report: pytest.TestReport, call: pytest.CallInfo[None]) -> str:
    """Why a check was skipped, or is expected to fail and did."""
    where = report.longrepr
    if expected := getattr(report, "wasxfail", None):
        fault = call.excinfo.value if call.excinfo else None
        told = "" if fault is None or isinstance(fault, pytest.xfail.Exception) else str(fault).strip().split("\n")[0]
        reason = str(expected).removeprefix("reason: ")
        return f"failed as expected (xfail: {reason}){': ' * bool(told)}{told}"
    text = where[2] if isinstance(where, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")


def _message(text: str, call: pytest.CallInfo[None]) -> str:
    kind = call.excinfo.type.__name__ if call.excinfo else ""
    return text if kind in _ABOUT_THE_IMAGE else f"{kind}: {text}"
