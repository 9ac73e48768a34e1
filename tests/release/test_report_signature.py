"""The signature of a report: which keys make it, and what it is over. tests/attacks/test_origin.py forges it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami.errors import UsageError
from gpu_ami.release import keys, report_signature
from gpu_ami.report import writer
from tests.release import examples
from tests.report.examples import a_host, a_report


def test_this_machine_signs_with_a_key_of_its_own(tmp_path: Path, home: Path) -> None:
    report = a_report(a_host())
    writer.write(report, tmp_path / "out")
    report_signature.sign(report, tmp_path / "out")
    assert (home / "report.key").stat().st_mode & 0o777 == 0o600
    assert report_signature.examine(report, tmp_path / "out").unsigned == ""
    (tmp_path / "out/report.dsse.json").write_text("{}")
    assert "report.dsse.json: " in report_signature.examine(report, tmp_path / "out").refused


def test_without_a_state_folder_nothing_is_signed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("GPU_AMI_HOME", str(tmp_path / "file" / "home"))
    report = a_report(a_host())
    writer.write(report, tmp_path / "out")
    report_signature.sign(report, tmp_path / "out")
    assert not (tmp_path / "out" / writer.SIGNATURE_FILE).exists()
    report_signature.sign(report, tmp_path / "out", [examples.signer(tmp_path, "job.key")])
    trusted = keys.trusted([str(tmp_path / "job.key.pub")], None)
    assert report_signature.examine(report, tmp_path / "out", trusted).unsigned == ""


def test_a_report_that_failed_is_signed_as_failed(tmp_path: Path, home: Path) -> None:
    report = a_report(a_host(xid="FAIL"))
    writer.write(report, tmp_path)
    report_signature.sign(report, tmp_path)
    content = json.loads((tmp_path / writer.SIGNATURE_FILE).read_text())
    assert content["payloadType"] == "application/vnd.in-toto+json" and report_signature.examine(report, tmp_path)
    assert report_signature.examine(report, tmp_path).refused == ""


def test_a_link_in_the_folder_leaves_a_proof_unsigned(tmp_path: Path, home: Path) -> None:
    report = a_report(a_host())
    writer.write(report, tmp_path / "out")
    (tmp_path / "out/evidence").mkdir()
    (tmp_path / "out/evidence/kernel.log").symlink_to("/etc/hostname")
    report_signature.sign(report, tmp_path / "out")
    assert not (tmp_path / "out" / writer.SIGNATURE_FILE).exists()
    with pytest.raises(UsageError, match="a symbolic link"):
        report_signature.sign(report, tmp_path / "out", [examples.signer(tmp_path, "job.key")])
