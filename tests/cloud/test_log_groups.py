"""Log groups of proofs: their names, which of them belong to a run, and that no other group is ever deleted."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path

import pytest

from gpu_ami.cloud import Cloud, Place, log_groups, runs, sweep
from gpu_ami.progress import Progress
from tests.cloud.test_sweep import dead_record

PLANNED = "/ec2/accelerated/accel-event-log"


def a_run_id(age: timedelta) -> str:
    return f"{runs.now() - age:%Y%m%d-%H%M%S}-0a1b2c"


def create(cloud: Cloud, *names: str) -> None:
    for name in names:
        cloud.client("logs").create_log_group(logGroupName=name)


def names(cloud: Cloud) -> list[str]:
    return [group["logGroupName"] for group in cloud.client("logs").describe_log_groups()["logGroups"]]


def test_suffix_names_the_run_unless_production_is_asked_for(run: runs.Run) -> None:
    assert log_groups.suffix(Place("aws", "us-east-1"), run) == f"-proof/{run.id}"
    assert log_groups.suffix(Place("aws", "us-east-1", log_groups="production"), run) == ""
    assert log_groups.run_of(f"{PLANNED}-proof/{run.id}") == run.id, "the pattern is that of runs.begin"


OTHERS = (PLANNED, f"{PLANNED}-proof/", f"{PLANNED}-proof/mine", "-proof/20260101-000000-0a1b2c")


@pytest.mark.parametrize("group", OTHERS)
def test_other_groups_are_never_deleted(cloud: Cloud, group: str) -> None:
    assert log_groups.run_of(group) == "" and not log_groups.is_old(group)
    with pytest.raises(ValueError, match="is not a log group of a proof"):
        log_groups.delete(cloud, group)


def test_deleting_twice_is_no_error(cloud: Cloud) -> None:
    group = f"{PLANNED}-proof/{a_run_id(timedelta())}"
    create(cloud, group, PLANNED)
    assert log_groups.of_proofs(cloud) == log_groups.of_proofs(cloud, group[-20:]) == [group]
    log_groups.delete(cloud, group)
    log_groups.delete(cloud, group)
    assert names(cloud) == [PLANNED]


def test_sweep_removes_groups_of_dead_runs_and_old_ones(cloud: Cloud, home: Path, run: runs.Run) -> None:
    dead, elsewhere, old = (a_run_id(timedelta(hours=hours)) for hours in (1, 2, 25))
    dead_record(home, dead)
    kept = [PLANNED, *(f"{PLANNED}-proof/{identity}" for identity in (run.id, elsewhere, "mine"))]
    leftovers = [f"{PLANNED}-proof/{identity}" for identity in (dead, old)]
    create(cloud, *kept, *leftovers)
    listed = sweep.sweep_cloud(cloud, home, Progress("quiet"), dry_run=True)
    assert [row.outcome for row in listed] == ["would be removed"] * 2 and sorted(names(cloud)) == sorted(
        kept + leftovers
    )
    swept = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert {(row.kind, row.id, row.reason) for row in swept} == {
        ("log-group", leftovers[0], "its run has died"),
        ("log-group", leftovers[1], "its run began more than a day ago"),
    }
    assert sorted(names(cloud)) == sorted(kept)


def test_refused_listing_is_reported_after_the_rest(cloud: Cloud, home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from gpu_ami.errors import CloudError

    def refuse(*_: object) -> list[str]:
        raise CloudError("listing log groups: AccessDeniedException")

    monkeypatch.setattr(log_groups, "of_proofs", refuse)
    (row,) = sweep.sweep_cloud(cloud, home, Progress("quiet"))
    assert (row.outcome, row.error) == ("not removed", "listing log groups: AccessDeniedException")
