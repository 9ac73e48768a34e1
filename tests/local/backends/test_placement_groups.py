"""Placement groups in the local region, as boto3 sees them, and removed by the code that makes them on AWS."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_ami.cloud import Cloud, Credentials, Launch, Place, placement_groups, runs
from gpu_ami.errors import CloudError
from tests.local.api.test_application import client
from tests.local.conftest import BASE_ID, PUBLIC_KEY, Region, World


@pytest.fixture
def cloud(endpoint: str) -> Cloud:
    keys = Credentials("local", "local")
    return Cloud(Place("aws", "us-east-1", endpoint=endpoint, credentials=keys, consistent_seconds=0))


@pytest.fixture
def records(tmp_path: Path) -> Path:
    return tmp_path / "of-the-caller"


@pytest.fixture
def run(records: Path) -> Iterator[runs.Run]:
    with runs.begin(records, "aws") as begun:
        yield begun


def names(cloud: Cloud) -> list[str]:
    return [group["GroupName"] for group in cloud.ec2.describe_placement_groups()["PlacementGroups"]]


def launch(cloud: Cloud, run: runs.Run, group: str, count: int = 2) -> list[str]:
    cloud.import_key("k", PUBLIC_KEY, run.tags())
    return cloud.launch_all(Launch(BASE_ID, "g5.12xlarge", "k", run.tags(), "", count=count, placement_group=group))


def test_machines_of_one_call_are_in_one_group(world: World, cloud: Cloud, run: runs.Run) -> None:
    placement_groups.create(cloud, "g", run.tags())
    ids = launch(cloud, run, "g", 3)
    assert len(set(ids)) == 3
    rows = [world.ec2.instance(each) for each in ids]
    groups = [world.ec2.placement_groups.of(row) for row in rows]
    assert {group.name for group in groups if group} == {"g"} and None not in groups
    assert len({row.private_ip for row in rows}) == 3 and len({row.subnet_id for row in rows}) == 1
    assert world.ec2.placement_groups.of(world.launch()) is None


@pytest.mark.parametrize(
    ("call", "parameters", "code"),
    [
        ("create_placement_group", {"GroupName": "g", "Strategy": "cluster"}, "InvalidPlacementGroup.Duplicate"),
        ("create_placement_group", {"GroupName": "h", "Strategy": "near"}, "InvalidParameterValue"),
        ("create_placement_group", {"Strategy": "cluster"}, "MissingParameter"),
        ("delete_placement_group", {"GroupName": "h"}, "InvalidPlacementGroup.Unknown"),
        ("describe_placement_groups", {"GroupNames": ["h"]}, "InvalidPlacementGroup.Unknown"),
        (
            "run_instances",
            {"ImageId": BASE_ID, "MinCount": 1, "MaxCount": 1, "Placement": {"GroupName": "h"}},
            "InvalidPlacementGroup.Unknown",
        ),
    ],
)
def test_what_ec2_refuses(world: World, endpoint: str, call: str, parameters: dict[str, Any], code: str) -> None:
    ec2 = client(endpoint)
    ec2.create_placement_group(GroupName="g", Strategy="cluster")
    with pytest.raises(ClientError) as caught:
        getattr(ec2, call)(**parameters)
    assert caught.value.response["Error"]["Code"] == code
    assert not world.ec2.instances()


def test_instances_may_be_terminated_twice(world: World, cloud: Cloud, run: runs.Run) -> None:
    cloud.import_key("k", PUBLIC_KEY, run.tags())
    ids = cloud.launch_all(Launch(BASE_ID, "g5.12xlarge", "k", run.tags(), "", count=2))
    cloud.terminate(ids[1:])
    cloud.terminate(ids)
    world.settle()
    cloud.terminate(ids)
    assert {world.ec2.instance(each).state for each in ids} == {"terminated"}


def test_the_policies_of_iam_allow_it(region: Region, records: Path) -> None:
    world, url = region("iam-enforced")
    keys = Credentials("local", "local")
    cloud = Cloud(Place("aws", "us-east-1", endpoint=url, credentials=keys, consistent_seconds=0))
    with runs.begin(records, "aws") as run:
        placement_groups.create(cloud, "gpu-ami-x", run.tags())
        assert placement_groups.tagged(cloud, runs.TAG_RUN)
        placement_groups.delete(cloud, "gpu-ami-x", seconds=0)
        with pytest.raises(CloudError, match="UnauthorizedOperation"):
            placement_groups.create(cloud, "another", run.tags())
    assert world.ec2.instances() == []
