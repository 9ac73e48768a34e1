"""Writing a report: both files, odd bytes, a disk that is full."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.report import certificate, document, writer
from tests.report.examples import a_check, a_host, a_report, everything


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
    assert sorted(path.name for path in tmp_path.iterdir()) == ["junit.xml", "report.json"]
