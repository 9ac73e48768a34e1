"""The register of runs: what tells a living run from a dead one."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path

import pytest

from gpu_ami import runs


def test_a_run_is_registered_while_it_lasts(home: Path) -> None:
    with runs.begin(home, "local") as run:
        assert [(one.id, one.alive, one.place) for one in runs.records(home)] == [(run.id, True, "local")]
        assert run.folder.stat().st_mode & 0o077 == 0
    assert runs.records(home) == [] and not run.folder.exists()


def test_a_run_that_fails_is_forgotten_after_its_own_cleanup(home: Path) -> None:
    with pytest.raises(ValueError, match="boom"), runs.begin(home, "local"):
        raise ValueError("boom")
    assert runs.records(home) == []


def test_a_run_whose_cleanup_failed_is_kept_for_sweep(home: Path) -> None:
    with pytest.raises(ValueError, match="boom"), runs.begin(home, "local") as run, runs.cleaning_up(run):
        raise ValueError("boom")
    assert [one.id for one in runs.records(home)] == [run.id]


@pytest.mark.parametrize(
    ("pid", "started", "alive"),
    [
        (os.getpid(), runs.process_started(os.getpid()), True),
        (os.getpid(), "1", False),
        (2**22 - 1, "5", False),
        (1, "", False),
    ],
    ids=["ours", "our pid, another start", "no such process", "no start time"],  # the same in every worker
)
def test_a_process_is_its_pid_and_its_start_time(pid: int, started: str, alive: bool) -> None:
    assert runs.is_alive(pid, started) is alive


def test_half_written_record_is_a_dead_run(home: Path) -> None:
    folder = home / "runs" / "20260101-000000-abcdef"
    folder.mkdir(parents=True)
    (folder / "run.json").write_text('{"id": "2026')
    assert [(one.id, one.alive) for one in runs.records(home)] == [("20260101-000000-abcdef", False)]


@pytest.mark.parametrize(
    ("expires", "passed"),
    [
        ("2020-01-01T00:00:00Z", True),
        ("2999-01-01T00:00:00Z", False),
        ("", False),
        ("soon", False),
        ("2020-01-01", False),
    ],
)
def test_expiry(expires: str, passed: bool) -> None:
    assert runs.has_expired(expires) is passed


def test_tags_say_whose_and_how_long(home: Path) -> None:
    with runs.begin(home, "aws", timedelta(hours=1)) as run:
        tags = run.tags(recipe="debian12-gpu", plan_digest="sha256:1")
        assert tags[runs.TAG_RUN] == run.id and tags[runs.TAG_EXPIRES] == run.expires
        assert tags[runs.TAG_RECIPE] == "debian12-gpu" and tags[runs.TAG_PLAN] == "sha256:1"
        assert json.loads((run.folder / "run.json").read_text())["place"] == "aws"
        assert runs.TAG_PLAN not in run.tags()
