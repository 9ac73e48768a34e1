"""`gpu-ami sweep`: what it removes on this machine, and what it prints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from gpu_ami.cloud import sweep
from gpu_ami.commands import Outcome
from gpu_ami.commands import sweep as command
from gpu_ami.progress import Progress
from gpu_ami.region import provider
from localregion.state import Layout


def execute(*words: str) -> Outcome:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    args = parser.parse_args(["sweep", *words])
    outcome: Outcome = args.execute(args, Progress("quiet"))
    return outcome


def dead_run(home: Path, place: str) -> Path:
    folder = home / "runs" / f"20260101-000000-{place}"
    folder.mkdir(parents=True)
    process = {"pid": 4194303, "started": "another boot/1"}
    record = {"id": folder.name, "expires": "2999-01-01T00:00:00Z", "place": place, "process": process}
    (folder / "run.json").write_text(json.dumps(record))
    return folder


def test_nothing_to_sweep(home: Path) -> None:
    outcome = execute()
    assert (outcome.text, outcome.exit_code) == ("nothing to sweep", 0)


def test_leftovers_of_the_region_and_dead_runs_go(home: Path) -> None:
    instance = Layout(home).instance("i-1")
    instance.mkdir(parents=True)
    local, elsewhere = dead_run(home, "local"), dead_run(home, "aws")
    assert "would be removed" in execute("--dry-run").text and local.exists() and instance.exists()
    outcome = execute()
    assert "local region disk of i-1: removed (its daemon has ended)" in outcome.text
    assert f"run {local.name}: removed (its process has ended)" in outcome.text
    assert not local.exists() and not instance.exists()
    assert elsewhere.exists()  # of another place: its resources are still there


def test_what_was_not_removed_is_exit_4_and_keeps_the_record(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dead_run(home, "local")
    monkeypatch.setattr(provider(), "running", lambda: "the place")
    monkeypatch.setattr("gpu_ami.cloud.Cloud", lambda *_: None)
    left = sweep.Swept("instance", "i-1", run.name, "its run has died", "not removed", "UnauthorizedOperation")
    monkeypatch.setattr(sweep, "sweep_cloud", lambda *_, **__: [left])
    outcome = execute()
    assert outcome.exit_code == 4 and "not removed: UnauthorizedOperation" in outcome.text
    assert run.exists()
