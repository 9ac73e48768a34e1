"""The ECS cluster of a proof in the local region: refusals before a launch, an own cluster, what is left of runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import ApiAccess, Cloud, Clusters, Place, ecs, runs
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import UsageError
from gpu_ami.progress import Progress
from gpu_ami.validate import cluster
from gpu_ami.validate.node_services import Proven
from tests.localregion.api.test_layer import client
from tests.localregion.conftest import World
from tests.localregion.container_machines import ContainerMachine

RUN = "20261125-000000-abcdef"
OWN = f"gpu-ami-{RUN}"
PLAN: Any = {"node_ecs": {"version": "", "accelerator": "nvidia"}, "node": {"family": "ecs"}}
TAGS = {runs.TAG_RUN: RUN, runs.TAG_EXPIRES: "2999-01-01T00:00:00Z"}


@pytest.fixture
def cloud(endpoint: str) -> Cloud:
    place = Place("local", "us-east-1", api=ApiAccess(endpoint=endpoint, credentials=Credentials("local", "local")))
    return Cloud(place)


@pytest.fixture
def proven(cloud: Cloud) -> Proven:
    run: Any = SimpleNamespace(id=RUN)
    return Proven(PLAN, "ami-1", cloud, run, TAGS)


def at_once(remove: Callable[[], None]) -> None:
    remove()


def opened(proven: Proven, join: str) -> Any:
    return cluster.opened(proven, join, at_once, Progress("quiet"))


def names(cloud: Cloud) -> list[str]:
    api = cloud.client("ecs")
    rows = api.describe_clusters(clusters=api.list_clusters()["clusterArns"])["clusters"]
    return sorted(row["clusterName"] for row in rows if row["status"] == "ACTIVE")


def define(endpoint: str, family: str) -> None:
    client(endpoint, "ecs").register_task_definition(
        family=family, containerDefinitions=[{"name": "c", "image": "x", "memory": 16}]
    )


@pytest.fixture
def joined(world: World, endpoint: str, tmp_path: Any) -> Iterator[Callable[[str], ContainerMachine]]:
    machines: list[ContainerMachine] = []

    def one(name: str) -> ContainerMachine:
        machine = ContainerMachine(endpoint, world.launch().id, tmp_path / name, name)
        machines.append(machine)
        machine.start()
        return machine

    yield one
    for machine in machines:
        machine.close()


def wait_for(cloud: Cloud, name: str) -> None:
    import time

    ends = time.monotonic() + 30
    while not cloud.client("ecs").list_container_instances(cluster=name)["containerInstanceArns"]:
        assert time.monotonic() < ends
        time.sleep(0.05)


@pytest.mark.parametrize(
    ("join", "place_s", "message"),
    [
        ("", "", ""),
        ("gpu-nodes", "", ""),
        ("", "gpu-nodes", ""),
        ("other", "gpu-nodes", "--join other: the ECS cluster is not in us-east-1"),
        ("gone", "", "--join gone: the ECS cluster is INACTIVE, expected ACTIVE"),
    ],
)
def test_a_cluster_that_is_not_there_is_refused(cloud: Cloud, join: str, place_s: str, message: str) -> None:
    api = cloud.client("ecs")
    for name in ("gpu-nodes", "gone"):
        api.create_cluster(clusterName=name)
    api.delete_cluster(cluster="gone")
    cloud.place = replace(cloud.place, clusters=Clusters(name=place_s))
    if not message:
        cluster.require(PLAN, join, cloud)
        return
    with pytest.raises(UsageError) as caught:
        cluster.require(PLAN, join, cloud)
    assert caught.value.message == message and "leave the name out" in caught.value.hint


def test_without_a_name_the_run_has_a_cluster_of_its_own(
    cloud: Cloud, proven: Proven, endpoint: str, joined: Any
) -> None:
    cloud.client("ecs").create_cluster(clusterName="of-others")
    define(endpoint, OWN)
    define(endpoint, "gpu-ami-training")
    with opened(proven, "") as joining:
        assert (joining.cluster.name, joining.cluster.own, joining.cluster.run) == (OWN, True, RUN)
        rows = cloud.client("ecs").describe_clusters(clusters=[OWN], include=["TAGS"])["clusters"]
        assert {row["key"]: row["value"] for row in rows[0]["tags"]} == TAGS
        joined(OWN)
        wait_for(cloud, OWN)
    assert names(cloud) == ["of-others"]
    families = cloud.client("ecs").list_task_definitions(status="ACTIVE")["taskDefinitionArns"]
    assert [arn.rpartition("/")[2] for arn in families] == ["gpu-ami-training:1"]


def test_a_cluster_of_others_loses_our_machines_alone(cloud: Cloud, proven: Proven, joined: Any) -> None:
    cloud.client("ecs").create_cluster(clusterName="gpu-nodes")
    ours, theirs = joined("gpu-nodes"), None
    wait_for(cloud, "gpu-nodes")
    with opened(proven, "gpu-nodes") as joining:
        assert (joining.cluster.name, joining.cluster.own) == ("gpu-nodes", False)
        theirs = cloud.client("ecs").list_container_instances(cluster="gpu-nodes")["containerInstanceArns"]
        joining.leave(["i-0bbbbbbbbbbbbbbbb"])
        assert cloud.client("ecs").list_container_instances(cluster="gpu-nodes")["containerInstanceArns"] == theirs
        joining.leave([ours.instance_id])
    assert cloud.client("ecs").list_container_instances(cluster="gpu-nodes")["containerInstanceArns"] == []
    assert names(cloud) == ["gpu-nodes"]


def test_checks_read_the_cluster_and_the_run(proven: Proven) -> None:
    with opened(proven, "") as joining:
        found = joining.service.described(proven, joining.cluster, ())
    assert (found.service, found.cluster, found.run, found.run_tags) == ("ecs", OWN, RUN, TAGS)


def test_what_dead_runs_left_is_found_and_removed(cloud: Cloud, endpoint: str, joined: Any) -> None:
    """A cluster with a run's tags; container instances with its attribute in others' clusters; task definitions."""
    ecs.create(cloud, OWN, TAGS)
    cloud.client("ecs").create_cluster(clusterName="gpu-nodes", tags=[{"key": "team", "value": "a"}])
    define(endpoint, OWN)
    define(endpoint, "gpu-ami-training")
    joined("gpu-nodes")
    wait_for(cloud, "gpu-nodes")
    left = ecs.left_of_runs(cloud)
    assert [row.kind for row in left] == ["ecs-cluster", "container-instance", "task-definition"]
    assert {row.tags[runs.TAG_RUN] for row in left} == {RUN}
    assert left[1].tags[runs.TAG_EXPIRES] == left[2].tags[runs.TAG_EXPIRES] == "2026-11-26T00:00:00Z"
    for row in left:
        ecs.remove(cloud, row)
    assert ecs.left_of_runs(cloud) == [] and names(cloud) == ["gpu-nodes"]
