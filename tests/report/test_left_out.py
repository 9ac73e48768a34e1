"""What was asked for and passed is told apart from a failure of the image; neither gets a certificate."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.report import certificate, left_out, summary
from gpu_ami.report.document import COMES_BACK, HostReport, Report
from gpu_ami.report.left_out import LeftOut, Part
from tests.report.examples import a_check, a_host, a_report, core_checks, offline

REBOOT = LeftOut(Part.RESTART, "reboot", "--restarts")
STOP = LeftOut(Part.RESTART, "stop-start", "--restarts")
CHECKS = LeftOut(Part.CHECKS, "", "-k 'boot'")
KERNEL_XID = LeftOut(Part.KERNEL_XID, "", "without --provoke-xid")


def not_done(how: str) -> HostReport:
    """A machine on which everything passed, and one restart was not tried."""
    return replace(a_host(), restarts=(how,)).with_checks(a_check("boot", "UNPROVEN", id=f"{COMES_BACK}@{how}"))


def selected(*checks: object) -> HostReport:
    return HostReport("g5.12xlarge", checks=checks, facts={"hardware": "real"})  # type: ignore[arg-type]


def drill() -> HostReport:
    checks = [check for check in core_checks() if check.role != "xid"]
    xid = a_check("xid", tier="T2", event={"kind": "xid", "origin": "userland"})
    return HostReport("g5.12xlarge", checks=(*checks, xid), facts={"hardware": "real"})


def leaving(report: Report, *parts: LeftOut) -> Report:
    return replace(report, left_out=parts)


@pytest.mark.parametrize(
    ("report", "exit_code"),
    [
        (a_report(a_host(), unproven=("p4d.24xlarge",)), 0),
        (leaving(a_report(not_done("reboot")), REBOOT), 7),
        (leaving(a_report(not_done("reboot"), unproven=("p4d.24xlarge",)), REBOOT), 7),
        (leaving(a_report(selected(a_check("boot"))), CHECKS), 7),
        (leaving(a_report(selected(a_check("boot")), offline()), CHECKS), 7),
        (leaving(a_report(drill()), KERNEL_XID), 7),
        # Something else is missing, too.
        (leaving(a_report(not_done("stop-start")), REBOOT), 1),
        (a_report(not_done("reboot")), 1),
        (leaving(a_report(drill()), REBOOT), 1),
        (leaving(a_report(a_host(metrics="UNPROVEN"), unproven=("p4d.24xlarge",)), STOP), 1),
        # Nothing matched -k: nothing was proven.
        (leaving(a_report(selected()), CHECKS), 1),
        # What failed stays red, whatever was left out.
        (leaving(a_report(selected(a_check("boot", "FAIL"))), CHECKS), 1),
        (leaving(a_report(selected(a_check("boot", "FLAKY"))), CHECKS), 1),
        (leaving(a_report(a_host(), incomplete="the run was interrupted"), REBOOT), 4),
        (leaving(a_report(selected(a_check("boot"), a_check("mine", "ERROR"))), CHECKS), 4),
    ],
)
def test_exit_code(report: Report, exit_code: int) -> None:
    assert report.exit_code == exit_code
    assert left_out.passed_as_asked(report) is (exit_code in (0, 7))
    assert report.verdict != "PASS" and not certificate.certify(report).is_issued


def test_restart_that_was_asked_for_has_to_bring_the_machine_back() -> None:
    back = a_check("boot", "FAIL", id=f"{COMES_BACK}@reboot")
    report = leaving(a_report(replace(selected(a_check("boot")), restarts=("reboot",)).with_checks(back)), CHECKS)
    assert report.exit_code == 1


def test_what_was_left_out_is_named(tmp_path: Path) -> None:
    report = leaving(a_report(not_done("reboot"), unproven=("p4d.24xlarge",)), REBOOT)
    statement = certificate.certify(report)
    text = summary.text(report, statement, tmp_path)
    assert "left out on purpose: instance type p4d.24xlarge (--instance-type)" in text
    assert "left out on purpose: restart reboot (--restarts)" in text
    assert "All that was asked for passed; no certificate, for parts of the proof were left out (exit code 7)" in text
    assert "UNPROVEN, no certificate" in text
    assert "Left out on purpose: instance type p4d.24xlarge" in summary.markdown(report, statement)
    shard = a_report(a_host(), unproven=("p4d.24xlarge",))
    assert "this is a shard, and gpu-ami merge joins it" in summary.text(shard, None, tmp_path)
    failed = a_report(a_host(xid="FAIL"), unproven=("p4d.24xlarge",))
    assert "All that was asked for passed" not in summary.text(failed, None, tmp_path)
