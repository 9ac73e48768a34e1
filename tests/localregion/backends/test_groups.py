"""Rules of security groups: what they allow, and how those of conditions are set.

Placement groups in the local region, as boto3 sees them, and removed by the code that makes them on AWS.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from botocore.exceptions import ClientError

from gpu_ami.cloud import ApiAccess, Cloud, Credentials, Launch, Place, placement_groups, runs
from gpu_ami.errors import CloudError
from localregion.backends import ec2_groups
from localregion.backends.ec2_groups import GroupRules, Rule
from tests.aws_requests import refused_by_aws
from tests.localregion.api.test_application import client
from tests.localregion.conftest import BASE_ID, PUBLIC_KEY, SSH_PORT, Region, World


def group_with(world: World, *ingress: Rule, egress: tuple[Rule, ...] = ()) -> Any:
    ec2_groups.set_rules(world.ec2.backend, world.ec2.group_id, GroupRules(ingress, egress), 2222)
    return world.ec2.backend.get_security_group_from_id(world.ec2.group_id)


@pytest.mark.parametrize(
    ("rule", "port", "source", "allowed"),
    [
        (Rule("ssh", "127.0.0.0/8"), 2222, "127.0.0.1", True),
        (Rule("ssh", "127.0.0.0/8"), 22, "127.0.0.1", False),
        (Rule("ssh", "10.0.0.0/8"), 2222, "127.0.0.1", False),
        (Rule("2000-3000"), 2222, "127.0.0.1", True),
        (Rule("2000-2221"), 2222, "127.0.0.1", False),
        (Rule("443"), 2222, "127.0.0.1", False),
        (Rule("all"), 2222, "127.0.0.1", True),
    ],
)
def test_a_rule_allows_its_ports_from_its_network(
    world: World, rule: Rule, port: int, source: str, allowed: bool
) -> None:
    group = group_with(world, rule)
    assert ec2_groups.allows_ingress([group], port, source) is allowed
    assert not ec2_groups.allows_egress([group], port, source)  # the rules are all that there are
    group = group_with(world, egress=(rule,))
    assert ec2_groups.allows_egress([group], port, source) is allowed


def test_rules_of_several_groups_add_up(world: World) -> None:
    closed = world.ec2.backend.create_security_group("closed", "d", vpc_id=world.ec2.vpc_id)
    assert not ec2_groups.allows_ingress([closed], 2222, "127.0.0.1")
    assert ec2_groups.allows_ingress([closed, group_with(world, Rule("ssh"))], 2222, "127.0.0.1")


def test_a_rule_for_members_of_a_group_lets_nobody_else_in(world: World) -> None:
    group = group_with(world)
    pairs = [{"GroupId": group.id}]
    world.ec2.backend.authorize_security_group_ingress(group.id, "tcp", 2222, 2222, [], source_groups=pairs)
    assert group.ingress_rules and not ec2_groups.allows_ingress([group], 2222, "127.0.0.1")


@pytest.mark.parametrize(
    ("ingress", "egress", "allowed"),
    [
        (Rule("all", "members"), Rule("all", "members"), True),
        (Rule("all", "members"), Rule("all"), True),
        (Rule("all"), Rule("all"), False),
        (Rule("22", "members"), Rule("all"), False),
        (Rule("all", "members"), Rule("443"), False),
    ],
)
def test_traffic_of_members_needs_rules_both_ways(world: World, ingress: Rule, egress: Rule, allowed: bool) -> None:
    assert ec2_groups.allows_members([group_with(world, ingress, egress=(egress,))]) is allowed


def test_a_region_without_filters_lets_members_reach_each_other(world: World) -> None:
    assert ec2_groups.allows_members(world.ec2.groups_of(world.launch()))


def test_an_instance_without_groups_is_in_the_default_one(world: World) -> None:
    instance = world.launch(security_group_ids=[])
    assert [group.name for group in world.ec2.groups_of(instance)] == ["default"]
    assert [group.id for group in world.ec2.groups_of(world.launch())] == [world.ec2.group_id]


@pytest.mark.parametrize("named", [True, False])
def test_without_filtering_the_groups_say_that_a_login_works(world: World, named: bool) -> None:
    """A proof reads the rules before it waits for a login: what is not filtered must not look closed."""
    instance = world.launch() if named else world.launch(security_group_ids=[])
    assert world.rules is None
    assert ec2_groups.allows_ingress(world.ec2.groups_of(instance), SSH_PORT, "127.0.0.1")


@pytest.fixture
def cloud(endpoint: str) -> Cloud:
    keys = Credentials("local", "local")
    return Cloud(Place("aws", "us-east-1", api=ApiAccess(endpoint=endpoint, credentials=keys, consistent_seconds=0)))


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


def test_machines_of_one_call_have_its_instance_profile(world: World, cloud: Cloud, run: runs.Run) -> None:
    cloud.import_key("k", PUBLIC_KEY, run.tags())
    cloud.place = replace(cloud.place, instance_profile=world.ec2.profile)
    ids = cloud.launch_all(Launch(BASE_ID, "g5.12xlarge", "k", run.tags(), "", count=3))
    views = [world.ec2.view(world.ec2.instance(each)) for each in ids]
    assert len({view.role for view in views}) == 1 and None not in [view.role for view in views]


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
    with pytest.raises(ClientError) as caught, refused_by_aws("CreatePlacementGroup"):
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
    cloud = Cloud(Place("aws", "us-east-1", api=ApiAccess(endpoint=url, credentials=keys, consistent_seconds=0)))
    with runs.begin(records, "aws") as run:
        placement_groups.create(cloud, "gpu-ami-x", run.tags())
        assert placement_groups.tagged(cloud, runs.TAG_RUN)
        placement_groups.delete(cloud, "gpu-ami-x", seconds=0)
        with pytest.raises(CloudError, match="UnauthorizedOperation"):
            placement_groups.create(cloud, "another", run.tags())
    assert world.ec2.instances() == []
