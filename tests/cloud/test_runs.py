"""The register of runs: what tells a living run from a dead one."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import asdict, replace
from datetime import timedelta
from pathlib import Path

import pytest

from gpu_ami.cloud import runs
from gpu_ami.errors import BuildError
from gpu_ami.process import identify


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


def test_an_interrupted_run_says_whether_it_left_something_behind(home: Path) -> None:
    with pytest.raises(KeyboardInterrupt) as caught, runs.begin(home, "local"):
        raise KeyboardInterrupt
    assert caught.value.args == () and runs.records(home) == []
    with pytest.raises(KeyboardInterrupt) as caught, runs.begin(home, "local") as run:
        runs.leave_behind(run.folder)
        raise KeyboardInterrupt
    assert "not all that it started was cleaned up" in caught.value.args[0] and "gpu-ami sweep" in caught.value.args[1]
    with pytest.raises(BuildError) as failed, runs.begin(home, "local") as run:
        runs.leave_behind(run.folder)
        raise BuildError("a deadline passed")
    assert "gpu-ami sweep" in str(failed.value) and len(runs.records(home)) == 2


def test_a_run_whose_process_has_ended_is_dead(home: Path) -> None:
    process = subprocess.Popen(["sleep", "60"])
    identity = identify(process.pid)
    assert identity is not None
    folder = home / "runs" / "20260101-000000-abcdef"
    folder.mkdir(parents=True)
    record = {"id": folder.name, "expires": "2999-01-01T00:00:00Z", "place": "local"}
    (folder / "run.json").write_text(json.dumps(record | {"process": asdict(identity)}))
    try:
        assert [one.alive for one in runs.records(home)] == [True]
    finally:
        process.kill()
        process.wait()
    assert [one.alive for one in runs.records(home)] == [False]
    reused = replace(identity, pid=os.getpid())  # the same pid, another start
    (folder / "run.json").write_text(json.dumps(record | {"process": asdict(reused)}))
    assert [one.alive for one in runs.records(home)] == [False]


def test_a_record_says_when_its_run_was_last_alive(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "BEAT_SECONDS", 0.01)
    with runs.begin(home, "local") as run:
        (run.folder / "alive").touch()
        os.utime(run.folder / "alive", (0, 0))
        deadline = time.monotonic() + 10
        while runs.records(home)[0].last_alive < time.time() - 5:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    (folder := home / "runs" / "dead").mkdir()
    (folder / "run.json").write_text('{"id": "dead", "expires": ""}')
    assert runs.records(home)[0].last_alive == 0.0  # of an older release
    runs.touch(runs.records(home)[0])
    assert runs.records(home)[0].last_alive > time.time() - 5


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


def test_what_is_created_late_in_a_run_lives_as_long(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A machine after a build of three hours must not be a leftover an hour later."""
    with runs.begin(home, "aws") as run:
        later = runs.now() + timedelta(hours=3)
        monkeypatch.setattr(runs, "now", lambda: later)
        assert run.tags()[runs.TAG_EXPIRES] == runs.as_text(later + runs.LIFETIME)
