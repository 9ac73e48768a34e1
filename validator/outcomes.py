"""Verdicts from outcomes: what pytest reports of a phase of a check (setup, call, teardown) and how it is judged."""

from __future__ import annotations

import pytest

from validator.results import RunningCheck, Verdict
from validator.transport import TransportFault

# The fixtures that a check may use; named when one is misspelt.
FIXTURES = ("host", "plan", "machine", "cloudwatch", "observe")


def judge(check: RunningCheck, report: pytest.TestReport, call: pytest.CallInfo[None]) -> None:
    """Records the outcome of one phase."""
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
        message = f"transport error: {text}" if lost else _message(text, call)
        if report.when == "teardown":
            message = f"in teardown: {message}"
        check.update(verdict=Verdict.UNPROVEN if lost else Verdict.FAIL, message=message)


def _reason(report: pytest.TestReport) -> str:
    where = report.longrepr
    text = where[2] if isinstance(where, tuple) else report.longreprtext
    return text.removeprefix("Skipped: ")


def _message(text: str, call: pytest.CallInfo[None]) -> str:
    kind = call.excinfo.type.__name__ if call.excinfo else ""
    text = text.strip()
    return text if kind in ("AssertionError", "Failed", "CommandExpired", "CheckTimeout") else f"{kind}: {text}"
