"""The whole suite, the boot snapshot and gpu-ami-diagnose over every transcript, against the table beside it.

expected.yml has what differs from UNPROVEN "not in the transcript"; `pytest --update-golden` writes it, and its changes
are reviewed: a verdict is right because the machine was so, not because the check says it.
"""

from __future__ import annotations

import contextlib
import json
import re
import select
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpu_ami.events.reader import parser_module
from onhost import diagnose
from validator import tried_on
from validator.transport import transcript, transcript_values

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = sorted(path.parent for path in (ROOT / "tests" / "transcripts").glob(f"*/{transcript_values.FILE}"))
NAMES = [folder.name for folder in FOLDERS]
# What the issue of the transcripts asks for; each has at least one.
WANTED = {
    "p4d", "p5", "p5en", "p6-b200", "p6-b300", "p6e-gb200", "g5", "g6e", "g7e", "a100-mig", "h100-mig", "gpu-lost",
    "seven-of-eight", "fabric-degraded", "fabric-in-progress", "version-mismatch", "no-devices", "efa-1.43", "efa-1.50",
    "eks-nvidia", "ecs-gpu", "dlami", "trn1", "inf2",
}  # fmt: skip
# UNPROVEN for reasons that say nothing of the machine: the plan, or where the proof runs.
_OF_THE_PLACE = (
    transcript.NOT_IN,
    "the plan has no ",
    "the plan names no packages",
    "no --aws-region",
    "the plan's driver is",
)


def differing(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Verdict → checks with it; beside FAIL and UNPROVEN the beginning of the reason."""
    table: dict[str, Any] = {}
    for name, (verdict, message, _) in sorted(rows.items()):
        if verdict == "PASS":
            table.setdefault("PASS", []).append(name)
        elif verdict != "UNPROVEN" or not message.startswith(_OF_THE_PLACE):
            table.setdefault(verdict, {})[name] = " ".join(message.split())[:90].strip()
    return table


def on_host(machine: transcript.Transcript, monkeypatch: pytest.MonkeyPatch) -> dict[str, list[str]]:
    """What gpu-ami-diagnose finds, and the lines of the event parser's snapshot at boot that ask for something."""
    monkeypatch.setenv("PATH", str(machine.programs))
    document = diagnose.diagnose(diagnose.Machine(str(machine.root), seconds=10))
    probes = ("gpus", "nvlink", "efa")
    found = [f"{one['subject']}: {one['kind']}" for one in document["findings"] if one["probe"] in probes]
    return {"diagnose": found, "snapshot": list(snapshot(machine))}


def snapshot(machine: transcript.Transcript) -> Iterator[str]:
    started = parser_module("snapshot").Snapshot.start(str(machine.programs / "nvidia-smi"))
    if started is None:
        return
    poller = select.poll()
    poller.register(started.fd, select.POLLIN | select.POLLHUP)
    while not started.read():
        poller.poll(5000)
    for board, _ in started.finish():
        severity, action = parser_module("details").board_advice(board)
        if action != "IGNORE" or board.get("RecoveryUnknown"):
            yield f"{board.get('pci', '')} {severity} {action} {board.get('why', '')}".strip()[:120]


def test_every_transcript_that_is_asked_for_is_there() -> None:
    assert set(NAMES) >= WANTED and len(NAMES) >= 20
    for folder in FOLDERS:
        values = transcript_values.load(folder)
        assert all("composed" in row or {"source", "date"} <= row.keys() for row in values.sources.values()), folder
        assert 0 < values.share <= 1, folder


@pytest.mark.skipif(sys.platform != "linux", reason="the programs of a transcript run on Linux alone")
def test_verdicts_are_those_of_the_tables(tmp_path: Path, update_golden: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    command = [sys.executable, "-m", "tests.validator.transcript_session", tmp_path, *FOLDERS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600)
    logs = "\n".join(path.read_text()[-500:] for path in tmp_path.glob("*.log")) if done.returncode else ""
    assert done.returncode == 0, done.stderr + logs
    wrong = []
    for folder in FOLDERS:
        rows = json.loads((tmp_path / f"{folder.name}.json").read_text())
        with contextlib.closing(transcript.Transcript(folder)) as machine:
            share = round(machine.values.share, 2)
            sourced = sorted(
                name for name, (verdict, _, known) in rows.items() if verdict in ("PASS", "FAIL") and known
            )
            found = {"share": share, **differing(rows), "sourced": sourced, **on_host(machine, monkeypatch)}
        path = folder / "expected.yml"
        if update_golden:
            path.write_text(yaml.safe_dump(found, sort_keys=False, width=140, allow_unicode=True), encoding="utf-8")
        expected = yaml.safe_load(path.read_text(encoding="utf-8"))
        wrong += [
            f"{folder.name}: {key}: expected {expected.get(key)}, got {found.get(key)}"
            for key in found.keys() | expected.keys()
            if expected.get(key) != found.get(key)
        ]
    assert wrong == []


def tried(ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """What tried_on.json has: from the recorded runs on real GPUs, the tables of the transcripts, and the reasons."""
    hardware: dict[str, list[str]] = {}
    for run in yaml.safe_load((ROOT / "bench" / "hardware_runs.yml").read_text(encoding="utf-8")):
        for name in ids:
            if name.partition("::")[0] in run["checks"] and name not in run["left_out"]:
                hardware.setdefault(name, []).append(f"{run['gpu']}, {run['date']}")
    transcripts: dict[str, list[str]] = {}
    for folder in FOLDERS:
        table = yaml.safe_load((folder / "expected.yml").read_text(encoding="utf-8"))
        for name in table["sourced"]:
            transcripts.setdefault(name, []).append(folder.name)
    reasons = yaml.safe_load((ROOT / "tests" / "transcripts" / "no_source.yml").read_text(encoding="utf-8"))
    return {
        "hardware": dict(sorted(hardware.items())),
        "transcript": dict(sorted(transcripts.items())),
        "replica": dict(sorted(reasons.items())),
    }


def test_what_each_check_was_tried_on_is_generated(update_golden: bool) -> None:
    ids = [
        f"{path.stem}::{name}"
        for path in sorted((ROOT / "validator" / "checks").glob("*.py"))
        for name in re.findall(r"^def (test_\w+)", path.read_text(encoding="utf-8"), re.MULTILINE)
    ]
    found = tried(ids)
    if update_golden:
        tried_on.FILE.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    assert json.loads(tried_on.FILE.read_text(encoding="utf-8")) == found
    unknown = {name.partition("[")[0] for table in found.values() for name in table} - set(ids)
    assert unknown == set()
    assert not found["replica"].keys() & (found["hardware"].keys() | found["transcript"].keys()), "it has a source now"


def test_kinds_are_counted_once_and_without_restarts() -> None:
    hardware, transcribed = "compute::test_cuda_starts", "efa::test_installer_is_the_planned_one"
    assert tried_on.tried_with(f"{hardware}@reboot")[0] == "hardware"
    assert tried_on.tried_with(transcribed) == ("transcript", ("dlami", "efa-1.43", "efa-1.50"))
    assert tried_on.tried_with("drain_hook::test_x") == ("replica", ())
    counted = tried_on.summary([hardware, f"{hardware}@reboot", transcribed, "drain_hook::test_x"])
    assert counted == "3 checks: 1 hardware, 1 transcripts, 1 replicas alone"
    assert tried_on.summary(["mine::test_x"]) == "1 check: 0 hardware, 0 transcripts, 0 replicas alone, 1 of your own"
