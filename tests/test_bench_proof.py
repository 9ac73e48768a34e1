"""bench/bench_proof.py: what a pass of the checks spent its seconds on, from a report and its round trips."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from bench import bench_proof
from gpu_ami.report import writer
from gpu_ami.report.document import Stage
from tests.report.examples import a_host, a_report
from validator.evidence import ROUND_TRIPS_FILE

BEGAN = 1_764_000_000.0


def command(seconds: float, *checks: str, text: str = "true") -> dict[str, Any]:
    return {"seconds": seconds, "checks": list(checks), "command": text}


def trip(at: float, seconds: float, *commands: dict[str, Any]) -> dict[str, Any]:
    return {"began": BEGAN + at, "seconds": seconds, "commands": list(commands)}


@pytest.mark.parametrize(
    ("trips", "parts"),
    [
        ([], {"start": 10}),
        (  # four at a time: both commands ran for 2 s of the 2.5
            [trip(1, 2.5, command(2, "compute::test_x", "xid::test_y"), command(2, "kernel::test_z"))],
            {"start": 1, "compute probe": 1, "other checks": 1, "round trip": 0.5, "end": 6.5},
        ),
        (
            [
                trip(1, 1, command(1, text="dpkg-query -f '${Status}' -W a b")),
                trip(4, 5, command(4.5, text="journalctl -b")),
            ],
            {"start": 1, "other checks": 1, "waiting": 2, "evidence": 4.5, "round trip": 0.5, "end": 1},
        ),
        (  # eight of 1 s, four at a time: 2 s
            [trip(1, 2.5, *(command(1, "kernel::test_x") for _ in range(8)))],
            {"start": 1, "other checks": 2, "round trip": 0.5, "end": 6.5},
        ),
        (  # of two shells, at the same time: nothing is counted twice
            [trip(0, 4, command(4, "hygiene::test_x")), trip(2, 4, command(1, "inventory::test_x"))],
            {"hygiene": 4, "account": 1, "round trip": 1, "end": 4},
        ),
    ],
)
def test_the_parts_of_a_pass(trips: Sequence[dict[str, Any]], parts: dict[str, float]) -> None:
    found = bench_proof.profile(bench_proof.Pass("x", BEGAN, 10.0, trips))
    assert {name: seconds for name, seconds in found.items() if seconds} == pytest.approx(parts)
    assert sum(found.values()) == pytest.approx(10.0)


def test_every_pass_that_kept_its_round_trips_is_a_row(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = a_report(a_host("g5.12xlarge"), a_host("p4d.24xlarge"))
    began = datetime.fromisoformat(report.started).timestamp()
    stages = (
        Stage("boot g5.12xlarge", 1, 60.0, "done", 5.0, "g5.12xlarge"),
        Stage("check g5.12xlarge", 1, 20.0, "done", 65.0, "g5.12xlarge"),
        Stage("check g5.12xlarge after reboot", 1, 10.0, "done", 90.0, "g5.12xlarge"),
        Stage("check p4d.24xlarge", 1, 20.0, "done", 65.0, "p4d.24xlarge"),
    )
    writer.write(replace(report, stages=stages), tmp_path)
    for folder, at in (("g5.12xlarge", 66), ("g5.12xlarge/after-reboot", 91)):
        file = tmp_path / "evidence" / folder / ROUND_TRIPS_FILE
        file.parent.mkdir(parents=True)
        rows = {"began": began + at, "seconds": 4.0, "commands": [command(4.0, "kernel::test_x")]}
        file.write_text(json.dumps(rows) + "\n")
    assert bench_proof.main([str(tmp_path), "--commands", "3"]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert "| · boot g5.12xlarge | g5.12xlarge | 5 | 60.0 |" in printed
    assert "| checks of | s | other checks | start | end |" in printed
    assert "| g5.12xlarge | 20.0 | 4.0 | 1.0 | 15.0 |" in printed
    assert "| g5.12xlarge reboot | 10.0 | 4.0 | 1.0 | 5.0 |" in printed
    assert "| all | 30.0 | 8.0 | 2.0 | 20.0 |" in printed
    assert printed[-1] == "| 8.0 | 2 | kernel::test_x |"


def test_a_proof_without_them_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    writer.write(a_report(a_host()), tmp_path)
    assert bench_proof.main([str(tmp_path)]) == 2
    assert f"no {ROUND_TRIPS_FILE}; prove the image again" in capsys.readouterr().err


def test_a_folder_without_a_report_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert bench_proof.main([str(tmp_path)]) == 2
    assert "report.json: no such file: `gpu-ami validate` writes it" in capsys.readouterr().err
