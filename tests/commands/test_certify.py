"""`gpu-ami certify`: which files it writes for a verdict, and its exit code."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami import cli, pipeline
from gpu_ami.report import writer
from tests.release import examples
from tests.report.examples import a_host, a_report, unavailable_host


def test_passed_report_gets_a_certificate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer.write(a_report(a_host()), tmp_path)
    pipeline.sign_report(a_report(a_host()), tmp_path)
    assert cli.main(["certify", str(tmp_path)]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"PASS, certified: ami-1 → {tmp_path}/"
    assert {"certificate.json", "certificate.md", "report.html"} <= {path.name for path in tmp_path.iterdir()}
    assert json.loads((tmp_path / "certificate.json").read_text())["level"] == "certified"


def test_simulated_hardware_is_rehearsed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer.write(a_report(a_host(), simulated=True), tmp_path)
    assert cli.main(["certify", str(tmp_path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out) == json.loads((tmp_path / "certificate.json").read_text())
    assert json.loads((tmp_path / "certificate.json").read_text())["level"] == "rehearsed"


def test_failed_report_gets_none_and_removes_the_previous_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    writer.write(a_report(a_host()), tmp_path)
    assert cli.main(["certify", str(tmp_path)]) == 0
    writer.write(a_report(a_host(xid="FAIL")), tmp_path)
    capsys.readouterr()
    assert cli.main(["certify", str(tmp_path)]) == 1
    out = capsys.readouterr().out
    assert "FAIL g5.12xlarge xid::test_it" in out and "FAIL, no certificate: ami-1" in out
    assert not list(tmp_path.glob("certificate.*")) and (tmp_path / "report.html").exists()


def test_no_capacity_has_its_own_exit_code(tmp_path: Path) -> None:
    writer.write(a_report(unavailable_host()), tmp_path)
    assert cli.main(["certify", str(tmp_path), "-q"]) == 5
    assert not list(tmp_path.glob("certificate.*"))


@pytest.mark.parametrize("content", ["{", '{"schema": "gpu-ami/report/0"}'])
def test_damaged_report_is_refused(content: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "report.json").write_text(content)
    assert cli.main(["certify", str(tmp_path)]) == 2
    assert "report.json" in capsys.readouterr().err
    assert not list(tmp_path.glob("certificate.*"))


def test_missing_report_names_the_command_that_writes_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["certify", str(tmp_path)]) == 2
    assert "`gpu-ami validate` writes it" in capsys.readouterr().err


def test_the_page_shows_how_the_image_differs_from_the_one_before(tmp_path: Path) -> None:
    old, new = tmp_path / "old", tmp_path / "new"
    examples.write_folder(old, examples.certified_report(nvidia_driver={"version": "570.9"}))
    examples.write_folder(new, examples.certified_report(nvidia_driver={"version": "580.1"}))
    assert cli.main(["certify", str(new), "--before", str(old), "-q"]) == 0
    page = (new / "report.html").read_text()
    assert "<td>nvidia_driver.version</td><td>570.9</td><td>580.1</td>" in page


def test_an_unknown_image_before_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    examples.write_folder(tmp_path)
    assert cli.main(["certify", str(tmp_path), "--before", "elsewhere"]) == 2
    assert "elsewhere: no such file, folder or AMI id" in capsys.readouterr().err
    assert not (tmp_path / "report.html").exists()
