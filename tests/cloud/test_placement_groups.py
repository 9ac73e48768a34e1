"""Placement groups of a run, in the local region: tags at creation, removal after the instances, sweep."""
# ruff: noqa: F811

from __future__ import annotations

from pathlib import Path

import pytest

from gpu_ami.cloud import Cloud, placement_groups, runs, sweep
from gpu_ami.errors import CloudError
from gpu_ami.progress import Progress
from tests.cloud.test_sweep import dead_record
from tests.local.backends.test_groups import cloud, launch, names, records, run  # noqa: F401
from tests.local.conftest import World, empty_moto, endpoint, world  # noqa: F401


@pytest.fixture(autouse=True)
def _no_placement_groups() -> None:
    """In place of the fixture of plain moto, which has none."""


def test_a_group_carries_the_tags_of_its_creating_call(cloud: Cloud, run: runs.Run) -> None:
    placement_groups.create(cloud, "g", run.tags(recipe="r"))
    cloud.ec2.create_placement_group(GroupName="somebody's", Strategy="spread")
    (group,) = placement_groups.tagged(cloud, runs.TAG_RUN)
    assert (group.kind, group.id) == ("placement-group", "g") and group.tags[runs.TAG_RUN] == run.id
    assert {runs.TAG_EXPIRES, runs.TAG_RECIPE} <= set(group.tags)


def test_a_group_in_use_is_deleted_when_its_instances_have_ended(
    world: World, cloud: Cloud, run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement_groups.create(cloud, "g", run.tags())
    ids = launch(cloud, run, "g")
    with pytest.raises(CloudError, match=r"InvalidPlacementGroup\.InUse"):
        placement_groups.delete(cloud, "g", seconds=0)
    cloud.terminate(ids)
    monkeypatch.setattr(placement_groups.time, "sleep", lambda _: world.settle())  # type: ignore[attr-defined]
    placement_groups.delete(cloud, "g", seconds=30)
    assert names(cloud) == []
    placement_groups.delete(cloud, "g", seconds=0)  # none of that name is no error


def test_sweep_removes_the_groups_of_dead_runs(cloud: Cloud, run: runs.Run, records: Path) -> None:
    dead_record(records, "dead-run")
    future = "2999-01-01T00:00:00Z"
    placement_groups.create(cloud, "of-the-dead", {runs.TAG_RUN: "dead-run", runs.TAG_EXPIRES: future})
    placement_groups.create(cloud, "expired", {runs.TAG_RUN: "gone", runs.TAG_EXPIRES: "2020-01-01T00:00:00Z"})
    placement_groups.create(cloud, "alive", run.tags())
    swept = sweep.sweep_cloud(cloud, records, Progress("quiet"))
    assert {row.id for row in swept if row.kind == "placement-group"} == {"of-the-dead", "expired"}
    assert {row.outcome for row in swept} == {"removed"} and names(cloud) == ["alive"]
