"""ctrf.json: a report in the common test report format, which dashboards of several CI systems read.

https://ctrf.io, specification 0.0.0 (read 2026-11-27): reportFormat, specVersion, results with tool, summary and tests.
UNPROVEN and waived checks are `skipped`, checks that broke `other`; neither counts as passed.
"""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpu_ami import __version__
from gpu_ami.report.document import FAIL, FLAKY, PASS, UNAVAILABLE, UNPROVEN

if TYPE_CHECKING:
    from gpu_ami.report.document import HostReport, Report
    from validator.results import CheckRecord

CTRF_FILE = "ctrf.json"
_STATUS = {PASS: "passed", FAIL: "failed", FLAKY: "failed", UNPROVEN: "skipped", UNAVAILABLE: "skipped"}


def document(report: Report) -> dict[str, Any]:
    """The document. A machine that could not be checked is a test of status `other`."""
    tests = [test for host in report.hosts for test in _of_host(host)]
    if report.incomplete:
        tests.append({"name": "the proof is complete", "status": "other", "duration": 0, "message": report.incomplete})
    counts = {
        status: sum(test["status"] == status for test in tests)
        for status in ("passed", "failed", "pending", "skipped", "other")
    }
    summary = {"tests": len(tests), **counts, "start": _millis(report.started), "stop": _millis(report.finished)}
    tool = {"name": "gpu-ami", "version": __version__}
    return {
        "reportFormat": "CTRF",
        "specVersion": "0.0.0",
        "results": {"tool": tool, "summary": summary, "tests": tests, "environment": {"buildName": report.name}},
    }


def _of_host(host: HostReport) -> list[dict[str, Any]]:
    tests = [_test(check, host) for check in host.checks]
    if host.error:
        row = {"name": f"{host.name}: the machine can be checked", "status": "other", "duration": 0}
        tests.append(row | {"message": host.error, "suite": [host.name]})
    return tests


def _test(check: CheckRecord, host: HostReport) -> dict[str, Any]:
    status = "skipped" if check.waived else _STATUS.get(check.verdict, "other")
    test: dict[str, Any] = {
        "name": check.id,
        "status": status,
        "duration": round(check.seconds * 1000),
        "suite": [host.name, check.role],
        "tags": [check.tier],
        "rawStatus": str(check.verdict),
    }
    if status != "passed" and check.message:
        test["message"] = check.message
    if check.verdict == FLAKY:
        test["flaky"] = True
    return test


def _millis(text: str) -> int:
    """Milliseconds since 1970 of a time in RFC 3339; 0 where it is none."""
    try:
        return round(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return 0
