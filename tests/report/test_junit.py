"""junit.xml: every verdict in its own kind of element."""

from __future__ import annotations

from dataclasses import replace
from xml.etree import ElementTree

from gpu_ami.report import junit
from gpu_ami.report.document import Report
from tests.report.examples import WAIVER, a_check, a_host, a_report, error_host


def parse(report: Report) -> ElementTree.Element:
    return ElementTree.fromstring(junit.text(report).partition("\n")[2])


def test_every_verdict_is_counted() -> None:
    root = parse(a_report(a_host(xid="FAIL", logs="UNPROVEN", metrics="FLAKY", boot="ERROR"), error_host()))
    counts = {kind: len(root.findall(f".//{kind}")) for kind in ("failure", "skipped", "error")}
    assert counts == {"failure": 2, "skipped": 1, "error": 2}
    messages = [element.get("message") for element in root.iter("error")]
    assert messages == ["boot: observed 2, planned 1", "no SSH within 600 s"]


def test_each_suite_counts_its_cases_for_readers_that_do_not() -> None:
    root = parse(a_report(a_host(xid="FAIL", logs="UNPROVEN", metrics="FLAKY", boot="ERROR"), error_host()))
    counts = [{key: suite.get(key) for key in ("tests", "failures", "errors", "skipped", "time")} for suite in root]
    assert counts == [
        {"tests": "7", "failures": "2", "errors": "1", "skipped": "1", "time": "3.5"},
        {"tests": "1", "failures": "0", "errors": "1", "skipped": "0", "time": "0"},
    ]


def test_waived_failure_is_skipped_with_its_waiver() -> None:
    root = parse(a_report(a_host("g5.12xlarge", a_check("hygiene", "FAIL", waived=WAIVER))))
    (skipped,) = root.findall(".//skipped")
    assert skipped.get("message") == "FAIL, waived by release until 2027-01-01: ticket 7"


def test_incomplete_proof_is_an_error_of_its_own() -> None:
    root = parse(a_report(a_host(), incomplete="the run was interrupted"))
    (error,) = root.findall(".//error")
    assert error.get("message") == "the run was interrupted"


def test_suite_of_a_host_by_address_has_its_name() -> None:
    host = replace(a_host(), instance_type="", instance_id="")
    assert parse(a_report(host)).find("testsuite").get("name") == "ssh://admin@127.0.0.2:2222"  # type: ignore[union-attr]
