"""The last lines of a command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from gpu_ami.report import certificate, summary
from tests.report.examples import a_host, a_report, error_host
from validator.results import WaiverRecord, WaiverState


def test_last_lines_name_failure_and_files(tmp_path: Path) -> None:
    host = replace(a_host(xid="FAIL"), restarts=("reboot",), left_behind="terminating i-1: RequestLimitExceeded")
    report = a_report(host, error_host(), unproven=("p4d.24xlarge",), incomplete="the run was interrupted")
    text = summary.text(report, certificate.certify(report), tmp_path)
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


def test_level_stands_beside_the_verdict(tmp_path: Path) -> None:
    report = a_report(a_host())
    assert "PASS, certified: ami-1" in summary.text(report, certificate.certify(report), tmp_path)
    assert "PASS: ami-1" in summary.text(report, None, tmp_path)


def test_waived_checks_are_named_with_their_waiver(tmp_path: Path) -> None:
    host = a_host(xid="FAIL")
    waiver = WaiverRecord("xid::test_it", "comes with ticket 7", "me", "2027-01-31", {}, WaiverState.USED)
    checks = tuple(replace(check, waived=waiver) if check.verdict == "FAIL" else check for check in host.checks)
    text = summary.text(a_report(replace(host, checks=checks, waivers=(waiver,))), None, tmp_path)
    assert f"waived: {host.name} xid::test_it (FAIL): comes with ticket 7 (me, until 2027-01-31)" in text


def test_idle_waivers_are_named(tmp_path: Path) -> None:
    record = WaiverRecord("xid::test_ti", "why", "me", "2027-01-31", {}, WaiverState.UNMATCHED)
    text = summary.text(a_report(replace(a_host(), waivers=(record,))), None, tmp_path)
    assert "waiver of xid::test_ti: matches no check that ran; did you mean xid::test_it?" in text
