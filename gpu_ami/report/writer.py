"""Writes a report: report.json for the next stage, junit.xml for CI.

junit.xml: a suite a machine, a case a check. What was not proven is skipped with its reason, never an empty pass.
"""

from __future__ import annotations

from typing import TYPE_CHECKING
from xml.etree import ElementTree

from gpu_ami.files import write_json, write_text
from gpu_ami.report.document import ERROR, FAIL, FLAKY, PASS, REPORT_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_ami.report.document import HostReport, Report
    from validator.results import CheckRecord


JUNIT_FILE = "junit.xml"


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
    """Writes report.json and xml into a folder; returns the former's path. OSError: the old files are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / REPORT_FILE
    write_json(path, report.to_json())
    write_text(folder / JUNIT_FILE, text(report))
    return path
