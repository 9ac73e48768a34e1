"""Placement groups of a run, in the local region: tags at creation, removal after the instances, sweep."""
# ruff: noqa: F811

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_ami.cloud import Cloud, Launch, client, placement_groups, resources, runs, sweep
from gpu_ami.cloud.resources import Resource
from gpu_ami.errors import CloudError
from gpu_ami.progress import Progress
from tests.aws_requests import Checked
from tests.cloud.conftest import PUBLIC_KEY
from tests.cloud.test_sweep import dead_record
from tests.localregion.backends.test_groups import cloud, launch, names, records, run  # noqa: F401
from tests.localregion.conftest import BASE_ID, World, empty_moto, endpoint, world  # noqa: F401


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
    Clock(world, monkeypatch)
    placement_groups.delete(cloud, "g", seconds=30)
    assert names(cloud) == []
    placement_groups.delete(cloud, "g", seconds=0)  # none of that name is no error


class Clock:
    """Time that passes in sleeps alone, in which the region's instances end."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.begun, self.slept, self.world = time.time(), 0.0, world
        for module in (client, resources, sweep):
            monkeypatch.setattr(module, "time", self)

    def time(self) -> float:
        return self.begun + self.slept

    def monotonic(self) -> float:
        return self.slept

    def sleep(self, seconds: float) -> None:
        self.slept += seconds
        self.world.settle()


def test_a_refused_rate_does_not_end_the_wait(
    world: World, cloud: Cloud, run: runs.Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    placement_groups.create(cloud, "g", run.tags())
    cloud.terminate(launch(cloud, run, "g"))
    ask, refused = cloud.ec2.delete_placement_group, []

    def throttled(**given: Any) -> Any:
        if len(refused) < 2:
            refused.append(given)
            error = {"Error": {"Code": "RequestLimitExceeded", "Message": "Request limit exceeded."}}
            raise ClientError(error, "DeletePlacementGroup")
        return ask(**given)

    stub = Checked("ec2", delete_placement_group=throttled)
    monkeypatch.setattr(cloud.ec2, "delete_placement_group", stub.delete_placement_group)
    Clock(world, monkeypatch)
    placement_groups.delete(cloud, "g", seconds=30)
    assert refused and names(cloud) == []


def test_sweep_finds_an_instance_that_is_listed_later_than_its_group(
    world: World, cloud: Cloud, records: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its run died at RunInstances: the group is in use until a second look has found and ended the instance."""
    dead_record(records, "dead-run")
    (records / "runs/dead-run/alive").touch()
    cloud.place = replace(cloud.place, api=replace(cloud.place.api, consistent_seconds=60.0))
    tags = {runs.TAG_RUN: "dead-run", runs.TAG_EXPIRES: "2999-01-01T00:00:00Z"}
    placement_groups.create(cloud, "g", tags)
    cloud.import_key("k", PUBLIC_KEY, tags)
    cloud.launch_all(Launch(BASE_ID, "g5.12xlarge", "k", tags, "", count=2, placement_group="g"))
    clock, listed = Clock(world, monkeypatch), resources.tagged

    def late(of: Cloud, key: str) -> list[Resource]:
        found = listed(of, key)
        return found if clock.slept >= 55 else [one for one in found if one.kind != "instance"]

    monkeypatch.setattr(resources, "tagged", late)
    swept = sweep.sweep_cloud(cloud, records, Progress("quiet"))
    assert {row.outcome for row in swept} == {"removed"} and names(cloud) == []
    assert sorted(row.kind for row in swept) == ["instance", "instance", "key-pair", "placement-group"]


def test_sweep_removes_the_groups_of_dead_runs(cloud: Cloud, run: runs.Run, records: Path) -> None:
    dead_record(records, "dead-run")
    future = "2999-01-01T00:00:00Z"
    placement_groups.create(cloud, "of-the-dead", {runs.TAG_RUN: "dead-run", runs.TAG_EXPIRES: future})
    placement_groups.create(cloud, "expired", {runs.TAG_RUN: "gone", runs.TAG_EXPIRES: "2020-01-01T00:00:00Z"})
    placement_groups.create(cloud, "alive", run.tags())
    swept = sweep.sweep_cloud(cloud, records, Progress("quiet"))
    assert {row.id for row in swept if row.kind == "placement-group"} == {"of-the-dead", "expired"}
    assert {row.outcome for row in swept} == {"removed"} and names(cloud) == ["alive"]
