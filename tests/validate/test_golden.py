"""Golden files: what is kept, what is refused, and that a recording never proves anything."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami import cli
from gpu_ami.cloud import runs
from gpu_ami.errors import UsageError
from gpu_ami.report import certificate, page
from gpu_ami.report.document import UNPROVEN
from gpu_ami.validate import golden
from tests.validate.recorded import ANSWERS, PLAN, SEEN, SIMULATED, answering, write_plan
from validator.probes import hardware


@pytest.fixture
def reach(monkeypatch: pytest.MonkeyPatch) -> Any:
    return answering(monkeypatch)


def run(*words: str) -> int:
    return cli.main(["record", "-q", *words])


@pytest.mark.parametrize("plan", [{}, PLAN])
def test_no_certificate_comes_from_a_recording(tmp_path: Path, plan: dict[str, Any]) -> None:
    made = [golden.Recording(SEEN, tmp_path / "g5.12xlarge.json", [])]
    with runs.begin(tmp_path, "record") as one:
        report = golden.report(made, plan, one, "ami-1")
    assert report.verdict == UNPROVEN
    drawn = certificate.certify(report)
    assert drawn.level == "none"
    assert "g5.12xlarge: record::hardware: UNPROVEN: recorded in g5.12xlarge.json, not judged" in drawn.not_proven
    page.write(report, None, tmp_path)
    assert "recorded in g5.12xlarge.json, not judged" in (tmp_path / "report.html").read_text()


def test_changes_and_contradictions_are_told(reach: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_plan(tmp_path)
    folder = tmp_path / "golden"
    golden.keep(replace(SEEN, hardware=replace(SEEN.hardware, links={"0-1": "SYS"})), folder)
    one = ANSWERS["nvidia-smi -q -x"].replace("1C", "1D").replace("23028", "22000", 1)
    reach(**{"nvidia-smi -q -x": one})
    assert run(str(tmp_path), "--host", "ssh://admin@10.0.0.7", "--golden", str(folder)) == 1
    said = capsys.readouterr().out
    assert "changed: links: {'0-1': 'SYS'} → {'0-1': 'PHB'}" in said
    assert "differs from the facts: GPU 0000:00:1b.0: expected 23028 MiB within 2 %, got 22000 MiB" in said
    assert "differs from the facts: no GPU at 0000:00:1c.0 (facts)" in said


def test_simulated_hardware_never_replaces_real(reach: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "golden"
    golden.keep(SEEN, folder)
    before = (folder / "g5.12xlarge.json").read_bytes()
    reach(**SIMULATED)
    assert run("--host", "ssh://admin@10.0.0.7", "--golden", str(folder)) == UsageError.exit_code
    assert "was recorded on a real machine; this one's is simulated" in capsys.readouterr().err
    assert (folder / "g5.12xlarge.json").read_bytes() == before
    (folder / "g5.12xlarge.json").unlink()
    assert run("--host", "ssh://admin@10.0.0.7", "--golden", str(folder)) == 1
    kept = hardware.find_golden("g5.12xlarge", folder)
    assert kept is not None and kept.hardware.simulated
    assert "simulated hardware → " in capsys.readouterr().out


def test_a_broken_golden_file_is_not_overwritten(tmp_path: Path) -> None:
    (tmp_path / "g5.12xlarge.json").write_text("{")
    with pytest.raises(UsageError, match="not JSON"):
        golden.keep(SEEN, tmp_path)
    assert (tmp_path / "g5.12xlarge.json").read_text() == "{"
