"""Writes a report: report.json for the next stage, junit.xml for CI, and the lines that people read.

junit.xml: a suite a machine, a case a check. What was not proven is skipped with its reason, never an empty pass.

The last lines of a command: the verdict, every failure with its message, and where the files are. summary.md: a
report as people read it on the page of a CI job. Written for every report, also one that failed.

ctrf.json: a report in the common test report format, which dashboards of several CI systems read.

https://ctrf.io, specification 0.0.0 (read 2026-11-27): reportFormat, specVersion, results with tool, summary and tests.
UNPROVEN and waived checks are `skipped`, checks that broke `other`; neither counts as passed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree

from gpu_ami import __version__, foreign_text
from gpu_ami.errors import counted
from gpu_ami.files import write_json, write_text
from gpu_ami.report import left_out, templating
from gpu_ami.report.certificate import Certificate, as_found_lines, carried_lines
from gpu_ami.report.document import (
    ERROR,
    FAIL,
    FLAKY,
    PASS,
    REPORT_FILE,
    UNAVAILABLE,
    UNPROVEN,
    HostReport,
    Report,
    counts,
)
from validator import waivers

if TYPE_CHECKING:
    from validator.results import CheckRecord
if TYPE_CHECKING:
    from validator.results import CheckRecord


JUNIT_FILE = "junit.xml"
SIGNATURE_FILE = "report.dsse.json"  # gpu_ami.release.report_signature
CTRF_FILE = "ctrf.json"
_STATUS = {PASS: "passed", FAIL: "failed", FLAKY: "failed", UNPROVEN: "skipped", UNAVAILABLE: "skipped"}


def text(report: Report) -> str:
    """The document as text."""
    root = ElementTree.Element("testsuites", name=f"gpu-ami {report.plan.get('image', '')}")
    for host in report.hosts:
        _suite(root, host)
    if report.incomplete:
        suite = ElementTree.SubElement(root, "testsuite", name="proof")
        case = ElementTree.SubElement(suite, "testcase", classname="proof", name="the proof is complete")
        ElementTree.SubElement(case, "error", message=report.incomplete)
    for suite in root:
        _count(suite)
    for element in root.iter():  # XML has no control characters, not even as references
        element.text = foreign_text.visible(element.text) if element.text else element.text
        for name, value in element.attrib.items():
            element.set(name, foreign_text.visible(value))
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode", xml_declaration=True) + "\n"


def _suite(root: ElementTree.Element, host: HostReport) -> None:
    name = f"{host.instance_type} {host.instance_id}".strip() or host.host
    suite = ElementTree.SubElement(root, "testsuite", name=name)
    for check in host.checks:
        _case(suite, check)
    if host.error:
        case = ElementTree.SubElement(suite, "testcase", classname="boot", name="the machine can be checked")
        ElementTree.SubElement(case, "error", message=host.error.splitlines()[0]).text = host.error


def _count(suite: ElementTree.Element) -> None:
    """Counts of a suite's cases, which some readers take from here alone."""
    kinds = {"failures": "failure", "errors": "error", "skipped": "skipped"}
    suite.set("tests", str(len(suite)))
    for name, kind in kinds.items():
        suite.set(name, str(len(suite.findall(f"testcase/{kind}"))))
    suite.set("time", f"{sum(float(case.get('time', 0)) for case in suite):g}")


def _case(suite: ElementTree.Element, check: CheckRecord) -> None:
    name = check.id.rpartition("::")[2]
    case = ElementTree.SubElement(suite, "testcase", classname=check.role, name=name, time=str(check.seconds))
    if check.waived:
        waiver = check.waived
        reason = f"{check.verdict}, waived by {waiver.owner} until {waiver.expires}: {waiver.reason}"
        ElementTree.SubElement(case, "skipped", message=reason)
    elif check.verdict in (FAIL, FLAKY):
        failure = ElementTree.SubElement(case, "failure", message=check.first_line, type=str(check.verdict))
        failure.text = check.message
    elif check.verdict == ERROR:
        ElementTree.SubElement(case, "error", message=check.first_line).text = check.message
    elif check.verdict != PASS:
        ElementTree.SubElement(case, "skipped", message=f"{check.verdict}: {check.first_line}")


def write(report: Report, folder: Path) -> Path:
    """Writes report.json, xml and ctrf.json into a folder; returns the former's path. OSError: the old files are kept.

    The signature of the report before is removed.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (folder / SIGNATURE_FILE).unlink(missing_ok=True)
    path = folder / REPORT_FILE
    write_json(path, report.to_json())
    write_text(folder / JUNIT_FILE, text(report))
    write_json(folder / CTRF_FILE, ctrf_document(report))
    return path


_MESSAGE_LINES = 12


def summary_text(report: Report, certificate: Certificate | None, out: Path) -> str:
    """certificate: None for a command that issues none."""
    lines = [line for host in report.hosts for line in _host(host, report)]
    for host, check in report.failures():
        lines += ["", f"{check.verdict} {host.name} {check.id}", f"    {check.promise}"]
        lines += [f"    {line}" for line in _shortened(check.message.splitlines())]
    reasons = _reasons(report)
    lines += ["", *reasons] if reasons else []
    remarks = [*as_found_lines(report), *carried_lines(report), *_waived(report), *_waiver_remarks(report)]
    lines += ["", *remarks] if remarks else []
    lines += ["", "tiers: " + ", ".join(f"{tier['name']} {tier['verdict']}" for tier in report.tiers)]
    lines += [f"not removed: {host.left_behind.splitlines()[0]}" for host in report.hosts if host.left_behind]
    if left_out.passed_as_asked(report):
        lines += ["", f"All that was asked for passed; {_what_is_next(report)}"]
    return "\n".join([*lines, "", f"{report.verdict}{_level(certificate)}: {report.image or 'host'} → {out}/"])


def _what_is_next(report: Report) -> str:
    if report.left_out:
        return f"no certificate, for parts of the proof were left out (exit code {report.exit_code})"
    return "no certificate yet: this is a shard, and gpu-ami merge joins it with those of the other instance types"


def _shortened(message: list[str]) -> list[str]:
    """The first lines of a long message, how many follow in the report, and its last line."""
    if len(message) <= _MESSAGE_LINES:
        return message
    return [
        *message[: _MESSAGE_LINES - 2],
        f"… {len(message) - _MESSAGE_LINES + 1} more lines in report.json",
        message[-1],
    ]


def _host(host: HostReport, report: Report) -> list[str]:
    head = f"{host.verdict(report.roles):12} {host.name}  ({counts(host.checks) or 'no checks'})"
    return [head, *(f"    {line}" for line in host.error.splitlines())]


def _reasons(report: Report) -> list[str]:
    """Why the verdict is UNPROVEN, apart from the errors of machines."""
    lines = [f"incomplete: {report.incomplete}"] if report.incomplete else []
    lines += [f"left out on purpose: {line}" for line in left_out.lines(report)]
    lines += [line for host in report.hosts for line in _not_reached(host)]
    return lines + [
        f"not proven: {host.name}: {reason}"
        for host in report.hosts
        if not host.error
        for reason in host.unproven(report.roles)
    ]


_SHOWN_FAULTS = 3


def _not_reached(host: HostReport) -> list[str]:
    """How many checks met each transport error."""
    faults = Counter(check.message.splitlines()[0] for check in host.checks if check.met_a_transport_error)
    lines = [f"not judged: {host.name}: {counted(number, 'check')}: {fault}" for fault, number in faults.most_common()]
    hidden = len(lines) - _SHOWN_FAULTS
    return lines[:_SHOWN_FAULTS] + ([f"not judged: {host.name}: {hidden} more transport errors"] if hidden > 0 else [])


def _waived(report: Report) -> list[str]:
    """Red checks that do not count, each with the waiver that says so."""
    return [
        f"waived: {host.name} {check.id} ({check.verdict}): {check.waived.reason}"
        f" ({check.waived.owner}, until {check.waived.expires})"
        for host in report.hosts
        for check in host.checks
        if check.waived
    ]


def _waiver_remarks(report: Report) -> list[str]:
    """Waivers that did nothing on any machine, or that have expired."""
    records = [waiver for host in report.hosts for waiver in host.waivers]
    ids = [check.id for host in report.hosts for check in host.checks]
    return [f"waiver of {remark}" for remark in waivers.remarks(records, ids)]


def _level(certificate: Certificate | None) -> str:
    if certificate is None:
        return ""
    return f", {certificate.level}" if certificate.is_issued else ", no certificate"


SUMMARY_FILE = "summary.md"
_FAILURES = 40  # GitHub refuses a summary of more than 1 MiB; report.html has all of them


@dataclass(frozen=True)
class _Machine:
    """A row of the table of machines."""

    name: str
    verdict: str
    checks: str
    error: str


@dataclass(frozen=True)
class _Failure:
    """A check that failed. message: its first lines."""

    machine: str
    verdict: str
    id: str
    promise: str
    message: tuple[str, ...]


def markdown(report: Report, certificate: Certificate) -> str:
    """The summary: verdict, machines, failures, and what is missing for a PASS or for the certificate's next level."""
    failures = [
        _Failure(host.name, str(check.verdict), check.id, check.promise, tuple(_lines(check.message)))
        for host, check in report.failures()
    ]
    return templating.render(
        "job_summary.md.j2",
        report=report,
        certificate=certificate,
        machines=[_machine(host, report.roles) for host in report.hosts],
        failures=failures[:_FAILURES],
        more_failures=max(0, len(failures) - _FAILURES),
        not_proven=certificate.not_proven,
        passed_as_asked=left_out.passed_as_asked(report),
        left_out=left_out.lines(report),
    )


def write_summary(report: Report, certificate: Certificate, folder: Path) -> Path:
    """Writes summary.md beside report.json. OSError: the old file is kept."""
    path = folder / SUMMARY_FILE
    write_text(path, markdown(report, certificate))
    return path


def _machine(host: HostReport, roles: Sequence[str]) -> _Machine:
    return _Machine(host.name, str(host.verdict(roles)), counts(host.checks) or "none", host.error.partition("\n")[0])


def _lines(message: str) -> list[str]:
    lines = message.splitlines()
    rest = len(lines) - _MESSAGE_LINES
    return [*lines[:_MESSAGE_LINES], *([f"({rest} more lines in report.html)"] if rest > 0 else [])]


def ctrf_document(report: Report) -> dict[str, Any]:
    """The document. A machine that could not be checked is a test of status `other`."""
    tests = [test for host in report.hosts for test in _ctrf_tests(host)]
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


def _ctrf_tests(host: HostReport) -> list[dict[str, Any]]:
    tests = [_ctrf_test(check, host) for check in host.checks]
    if host.error:
        row = {"name": f"{host.name}: the machine can be checked", "status": "other", "duration": 0}
        tests.append(row | {"message": host.error, "suite": [host.name]})
    return tests


def _ctrf_test(check: CheckRecord, host: HostReport) -> dict[str, Any]:
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
