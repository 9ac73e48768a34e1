"""The report on disk while a proof runs: its reason, a pass that is running, a disk that is full."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.progress import Progress
from gpu_ami.report import HostReport, Report, document, writer
from gpu_ami.validate import recorder
from gpu_ami.validate.recorder import Recorder
from tests.report.examples import a_check, a_host, a_report
from tests.waiting import until
from validator.results import HostResults


def assemble(reports: Sequence[HostReport], incomplete: str) -> Report:
    return a_report(*reports, incomplete=incomplete)


def a_recorder(tmp_path: Path) -> Recorder:
    return Recorder(assemble, tmp_path, Progress("quiet"))


def on_disk(tmp_path: Path) -> Report:
    return document.load(tmp_path / "report.json")


def test_report_is_incomplete_until_the_proof_is_complete(tmp_path: Path) -> None:
    made = a_recorder(tmp_path)
    made.add(a_host())
    with made.recording():
        assert on_disk(tmp_path).incomplete == recorder.RUNNING
    assert made.complete() == on_disk(tmp_path) == a_report(a_host())


def test_the_report_that_is_returned_is_the_one_on_disk(tmp_path: Path) -> None:
    """Each time that it is assembled it has another time: a certificate of the one is none of the other."""
    seconds = iter(range(60))

    def assemble_now(reports: Sequence[HostReport], incomplete: str) -> Report:
        return replace(assemble(reports, incomplete), finished=f"2026-01-01T00:00:{next(seconds):02}Z")

    made = Recorder(assemble_now, tmp_path, Progress("quiet"))
    assert made.complete() == on_disk(tmp_path)


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (KeyboardInterrupt(), "the run was interrupted"),
        (CloudError("the region is gone"), "the run ended early: the region is gone"),
        (ZeroDivisionError("1 / 0"), "the run ended early: ZeroDivisionError: 1 / 0"),
    ],
)
def test_whatever_ends_a_proof_leaves_a_report(tmp_path: Path, error: BaseException, reason: str) -> None:
    made = a_recorder(tmp_path)
    made.add(a_host())
    with pytest.raises(type(error)), made.recording():
        raise error
    assert on_disk(tmp_path).incomplete == reason and on_disk(tmp_path).hosts == (a_host(),)


def test_checks_of_a_pass_that_runs_are_saved_every_few_seconds(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recorder, "SAVE_SECONDS", 0.02)
    made = a_recorder(tmp_path)
    host = made.add(HostReport("g5.12xlarge"))
    judged = [a_check("boot")]
    with made.recording():
        host.partial = lambda: HostResults("x", tuple(judged))
        assert until(lambda: on_disk(tmp_path).hosts[0].checks) == (judged[0],)
        host.partial = None
    assert made.complete().hosts[0].checks == ()


def test_full_disk_ends_no_proof_and_is_said_at_its_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = a_recorder(tmp_path)
    notes: list[str] = []
    monkeypatch.setattr(Progress, "note", lambda _, text: notes.append(text))
    real, room = writer.write, [False]

    def write(report: Report, folder: Path) -> Any:
        if not room[0]:
            raise OSError(28, "No space left on device")
        return real(report, folder)

    monkeypatch.setattr(writer, "write", write)
    made.add(a_host())
    with made.recording():
        made.save()
    assert len(notes) == 1 and "No space left on device" in notes[0], "noted once"
    with pytest.raises(CloudError, match="the report cannot be written: No space left on device"):
        made.complete()
    room[0] = True
    assert made.complete() == on_disk(tmp_path)
