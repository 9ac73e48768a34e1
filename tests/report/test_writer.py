"""The files of a report: folder, JUnit, summaries."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest

from gpu_ami.report import certificate, document, writer
from gpu_ami.report.document import Report
from tests.report.examples import WAIVER, a_check, a_host, a_report, error_host, everything
from validator.results import WaiverRecord, WaiverState

# Writing a report: both files, odd bytes, a disk that is full.


def test_report_and_junit_are_written(tmp_path: Path) -> None:
    path = writer.write(everything(), tmp_path / "new" / "folder")
    assert json.loads(path.read_text())["schema"] == document.SCHEMA
    assert (tmp_path / "new" / "folder" / "junit.xml").read_text().startswith("<?xml")


def test_odd_bytes_of_a_host_cost_no_report(tmp_path: Path) -> None:
    report = a_report(a_host("g5.12xlarge", a_check("boot", message="\udcff\x1b[31m")))
    certificate.certify(document.load(writer.write(report, tmp_path))).write(tmp_path)
    assert "udcff" in (tmp_path / "report.json").read_text()


def test_full_disk_keeps_the_old_report(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    report = a_report(a_host())
    writer.write(report, tmp_path)

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        writer.write(replace(report, run="another"), tmp_path)
    assert document.load(tmp_path / "report.json") == report
    assert sorted(path.name for path in tmp_path.iterdir()) == ["ctrf.json", "junit.xml", "report.json"]


# junit.xml: every verdict in its own kind of element.


def parse(report: Report) -> ElementTree.Element:
    return ElementTree.fromstring(writer.text(report).partition("\n")[2])


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


# The last lines of a command.


def test_last_lines_name_failure_and_files(tmp_path: Path) -> None:
    host = replace(a_host(xid="FAIL"), restarts=("reboot",), left_behind="terminating i-1: RequestLimitExceeded")
    report = a_report(host, error_host(), unproven=("p4d.24xlarge",), incomplete="the run was interrupted")
    text = writer.summary_text(report, certificate.certify(report), tmp_path)
    for part in (
        "FAIL g5.12xlarge xid::test_it",
        "xid: observed 2, planned 1",
        "no SSH within 600 s",
        "incomplete: the run was interrupted",
        "left out on purpose: instance type p4d.24xlarge (--instance-type)",
        "not proven: g5.12xlarge: reboot: not tried",
        "not removed: terminating i-1: RequestLimitExceeded",
        "tiers: T0 UNPROVEN, T1 FAIL, T2 UNPROVEN, T3 UNPROVEN, T4 UNPROVEN",
        "FAIL, no certificate: ami-1",
        str(tmp_path),
    ):
        assert part in text


def test_transport_errors_are_counted_by_what_they_say(tmp_path: Path) -> None:
    """Without them, a host on which no shell starts was `33 UNPROVEN`, and nothing said why."""
    faults = [f"transport error: host {number}\nmore" for number in (1, 1, 2, 3, 4, 5)]
    checks = [a_check(f"r{place}", "UNPROVEN", message=fault) for place, fault in enumerate(faults)]
    host = a_host("g5.12xlarge", *checks)
    lines = [line for line in writer.summary_text(a_report(host), None, tmp_path).splitlines() if "not judged" in line]
    assert lines == [
        f"not judged: {host.name}: 2 checks: transport error: host 1",
        f"not judged: {host.name}: 1 check: transport error: host 2",
        f"not judged: {host.name}: 1 check: transport error: host 3",
        f"not judged: {host.name}: 2 more transport errors",
    ]


def test_level_stands_beside_the_verdict(tmp_path: Path) -> None:
    report = a_report(a_host())
    assert "PASS, certified: ami-1" in writer.summary_text(report, certificate.certify(report), tmp_path)
    assert "PASS: ami-1" in writer.summary_text(report, None, tmp_path)


def test_waived_checks_are_named_with_their_waiver(tmp_path: Path) -> None:
    host = a_host(xid="FAIL")
    waiver = WaiverRecord("xid::test_it", "comes with ticket 7", "me", "2027-01-31", {}, WaiverState.USED)
    checks = tuple(replace(check, waived=waiver) if check.verdict == "FAIL" else check for check in host.checks)
    text = writer.summary_text(a_report(replace(host, checks=checks, waivers=(waiver,))), None, tmp_path)
    assert f"waived: {host.name} xid::test_it (FAIL): comes with ticket 7 (me, until 2027-01-31)" in text


def test_idle_waivers_are_named(tmp_path: Path) -> None:
    record = WaiverRecord("xid::test_ti", "why", "me", "2027-01-31", {}, WaiverState.UNMATCHED)
    text = writer.summary_text(a_report(replace(a_host(), waivers=(record,))), None, tmp_path)
    assert "waiver of xid::test_ti: matches no check that ran; did you mean xid::test_it?" in text


# summary.md says the verdict first, then what failed, whatever the machine wrote.


def lines(*args: object) -> list[str]:
    report = args[0] if args else everything()
    return writer.markdown(report, certificate.certify(report, [])).splitlines()  # type: ignore[arg-type]


def test_the_verdict_is_the_first_line() -> None:
    assert lines()[0] == "## x: FAIL, no certificate"
    assert lines(a_report(a_host()))[0] == "## x: PASS, certified"
    assert "**Incomplete:** the run was interrupted" in lines()


def test_every_machine_has_a_row() -> None:
    rows = [line for line in lines() if line.startswith("| p")]
    assert rows == [
        "| p4d.24xlarge | UNPROVEN | none: no SSH within 600 s |",
        "| p5.48xlarge | UNAVAILABLE | none: InsufficientInstanceCapacity |",
        "| p5.48xlarge | UNPROVEN | not booted |",
    ]


def test_a_failed_check_has_its_promise_and_the_first_lines_of_its_message() -> None:
    message = "\n".join(f"line {number}" for number in range(30))
    text = lines(a_report(a_host("g5.12xlarge", a_check("efa", "FAIL", message=message))))
    assert "**FAIL** g5.12xlarge `efa::test_it`: efa keeps it." in text
    assert "    line 11" in text and "    line 12" not in text
    assert "    (18 more lines in report.html)" in text


def test_a_message_cannot_break_the_page() -> None:
    """What a machine printed stays in its block: no table, no HTML, no terminal colours."""
    message = "\x1b[31m</details> | <script>alert(1)</script>\u202e"
    host = replace(a_host("g5.12xlarge", a_check("efa", "FAIL", message=message)), error="a|b")
    text = lines(a_report(host))
    assert "    &lt;/details> | &lt;script>alert(1)&lt;/script>⟨U+202E⟩" in text
    assert any(line.endswith(r"a\|b |") for line in text)


def test_many_failures_are_cut(tmp_path: Path) -> None:
    checks = [a_check("efa", "FAIL", id=f"efa::test_{number}") for number in range(45)]
    report = a_report(a_host("g5.12xlarge", *checks))
    path = writer.write_summary(report, certificate.certify(report, []), tmp_path)
    text = path.read_text()
    assert (path.name, text.count("**FAIL**")) == ("summary.md", 40)
    assert "5 more in report.html." in text
