"""A scanner of the user's: its exit code is a check, which a waiver accepts until its last day."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami import cli
from gpu_ami.errors import UsageError
from gpu_ami.release import scan
from gpu_ami.report import document
from tests.release import examples
from validator.results import CheckRecord, WaiverState

WAIVER = "- {{check: 'scan::sh', reason: no fix yet, owner: release, expires: {day}}}\n"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    examples.write_folder(tmp_path / "out")
    return tmp_path / "out"


def certify(folder: Path, script: str, *words: str) -> int:
    return cli.main(["certify", str(folder), "--scan", f"sh -c '{script}' sh {{sbom}}", *words])


def record(folder: Path) -> CheckRecord:
    report = document.load(folder / "report.json")
    (found,) = [check for host in report.hosts for check in host.checks if check.role == "scan"]
    return found


def test_the_scanner_gets_the_bill_and_its_output_is_kept(folder: Path) -> None:
    assert certify(folder, "grep -c nvidia-utils $1") == 0
    assert (record(folder).verdict, record(folder).tier) == ("PASS", "T0")
    kept = (folder / "evidence/scan-sh.txt").read_text().splitlines()
    assert kept[0].startswith("$ sh -c") and int(kept[1]) > 0 and kept[-1] == "exit code 0"


def test_what_it_refuses_fails_the_image(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert certify(folder, "echo CVE-2026-1 in nvidia-utils; exit 2") == 1
    assert record(folder).message.endswith("exit code 2\nCVE-2026-1 in nvidia-utils")
    assert not (folder / "certificate.json").exists()
    assert "CVE-2026-1 in nvidia-utils" in capsys.readouterr().out


def test_a_second_scan_replaces_the_first(folder: Path) -> None:
    assert certify(folder, "exit 2") == 1
    assert certify(folder, "exit 0") == 0
    assert record(folder).verdict == "PASS"


@pytest.mark.parametrize(("day", "code", "state"), [("2100-01-01", 0, "used"), ("2020-01-01", 1, "expired")])
def test_a_waiver_accepts_it_until_its_last_day(folder: Path, tmp_path: Path, day: str, code: int, state: str) -> None:
    (tmp_path / "waivers.yml").write_text(WAIVER.format(day=day))
    assert certify(folder, "exit 2", "--waivers", str(tmp_path / "waivers.yml")) == code
    (waiver,) = document.load(folder / "report.json").hosts[0].waivers
    assert waiver.state == WaiverState(state)
    if code == 0:
        certificate = json.loads((folder / "certificate.json").read_text())
        assert any("scan::sh: FAIL, waived by release" in line for line in certificate["not_proven"])


def test_a_scanner_that_is_not_there_proves_nothing(folder: Path) -> None:
    assert cli.main(["certify", str(folder), "--scan", "no-such-scanner {sbom}"]) == 4
    assert not (folder / "certificate.json").exists()
    assert record(folder).verdict == "ERROR" and "no-such-scanner" in record(folder).message


def test_without_a_bill_it_is_unproven(folder: Path) -> None:
    (folder / "evidence/image-files/materials.json").unlink()
    assert certify(folder, "exit 0") == 4
    assert record(folder).verdict == "ERROR" and "no bill of materials" in record(folder).message


def test_no_shell_reads_the_command(folder: Path, tmp_path: Path) -> None:
    cli.main(["certify", str(folder), "--scan", f"echo {{sbom}}; touch {tmp_path}/made"])
    assert not (tmp_path / "made").exists() and record(folder).verdict == "PASS"


@pytest.mark.parametrize("command", ["grype", "grype 'x", "{sbom}", ""])
def test_a_command_without_the_bill_is_refused(command: str) -> None:
    with pytest.raises(UsageError):
        scan.parse(command)
