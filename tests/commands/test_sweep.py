"""`gpu-ami sweep`: what it removes on this machine, and what it prints."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from gpu_ami import pipeline
from gpu_ami.cloud import runs, sweep
from gpu_ami.commands import Outcome
from gpu_ami.commands import sweep as command
from gpu_ami.progress import Progress
from gpu_ami.region import SessionRequest, provider
from localregion.state import Layout


def execute(*words: str, progress: str = "quiet") -> Outcome:
    parser = argparse.ArgumentParser()
    command.register(parser.add_subparsers())
    args = parser.parse_args(["sweep", *words])
    outcome: Outcome = args.execute(args, Progress(progress))
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


@pytest.mark.parametrize("kind", ["host", "files", "record"])
def test_records_of_runs_without_a_place_go(kind: str, home: Path) -> None:
    """Of a `validate --host` or `--root` that was killed: nothing of it is in a cloud."""
    run = dead_run(home, kind)
    execute("--dry-run")
    assert run.exists()
    assert f"run {run.name}: removed (its process has ended)" in execute().text
    assert not run.exists()


def test_what_was_not_removed_is_exit_4_and_keeps_the_record(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    run = dead_run(home, "local")
    monkeypatch.setattr(provider(), "running", lambda: "the place")
    monkeypatch.setattr("gpu_ami.cloud.Cloud", lambda *_: None)
    left = sweep.Swept("instance", "i-1", run.name, "its run has died", "not removed", "UnauthorizedOperation")
    monkeypatch.setattr(sweep, "sweep_cloud", lambda *_, **__: [left])
    outcome = execute()
    assert outcome.exit_code == 4 and "not removed: UnauthorizedOperation" in outcome.text
    assert run.exists()


def place_file(folder: Path, region: str, name: str = "aws.yml") -> Path:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"region: {region}\nendpoint: http://127.0.0.1:1\n")
    return folder / name


def killed_run(where: Path | None, home: Path) -> str:
    """The id of a run in a place, with the record that it leaves when it is killed."""
    with pipeline.open_session(SessionRequest(where), Progress("quiet")) as session:
        folder = session.run.folder
        record = json.loads((folder / "run.json").read_text())
    folder.mkdir(parents=True)
    dead = {"pid": 4194303, "started": "another boot/1"}
    (folder / "run.json").write_text(json.dumps(record | {"process": dead}))
    return folder.name


def left(home: Path) -> list[str]:
    return [record.id for record in runs.records(home)]


@pytest.fixture
def nothing_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sweep, "sweep_cloud", lambda *_, **__: [])


@pytest.mark.usefixtures("nothing_found")
@pytest.mark.parametrize("region", ["us-east-1", "eu-central-1"])
def test_places_of_one_file_name_keep_their_records_apart(
    region: str, home: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its machines are in another region or account: without the record nothing finds them before they expire."""
    one, other = place_file(tmp_path / "a", "eu-central-1"), place_file(tmp_path / "b", region)
    runs_of = {where: killed_run(where, home) for where in (one, other)}
    execute("--where", str(other), progress="plain")
    assert left(home) == [runs_of[one]]
    assert f"run {runs_of[one]} is of {one} (eu-central-1): `gpu-ami sweep --where {one}`" in capsys.readouterr().err
    execute("--where", str(one))
    assert left(home) == []


@pytest.mark.usefixtures("nothing_found")
def test_the_local_region_leaves_records_of_a_file_of_its_name(home: Path, tmp_path: Path) -> None:
    of_file = killed_run(place_file(tmp_path / "a", "eu-central-1", "local.yml"), home)
    execute()
    assert left(home) == [of_file]


@pytest.mark.usefixtures("nothing_found")
def test_a_file_that_was_moved_keeps_its_records(home: Path, tmp_path: Path) -> None:
    old = place_file(tmp_path / "a", "eu-central-1")
    killed_run(old, home)
    new = old.rename(tmp_path / "aws.yml")
    elsewhere = place_file(tmp_path / "b", "us-east-1")
    execute("--where", str(elsewhere))
    assert len(left(home)) == 1
    execute("--where", str(new))
    assert left(home) == []


@pytest.mark.usefixtures("nothing_found")
def test_records_of_older_versions_are_known_by_the_name_of_their_place(home: Path, tmp_path: Path) -> None:
    kept, taken = dead_run(home, "other"), dead_run(home, "aws")
    execute("--where", str(place_file(tmp_path / "a", "eu-central-1")))
    assert kept.exists() and not taken.exists()
