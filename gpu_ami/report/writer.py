"""Writes a report: report.json for the next stage, junit.xml for CI."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_ami.files import write_json, write_text
from gpu_ami.report import junit
from gpu_ami.report.document import REPORT_FILE

if TYPE_CHECKING:
    from pathlib import Path

    from gpu_ami.report.document import Report


def write(report: Report, folder: Path) -> Path:
    """Writes report.json and junit.xml into a folder; returns the former's path. OSError: the old files are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / REPORT_FILE
    write_json(path, report.to_json())
    write_text(folder / junit.JUNIT_FILE, junit.text(report))
    return path
