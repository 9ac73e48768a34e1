"""Launches, and the dead-man switch that ends what they started."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.cloud import Cloud, Launch, Login, Place, launches, place_of, runs
from gpu_ami.cloud.capacity import Way
from gpu_ami.cloud.launches import request, tag_list
from gpu_ami.errors import CloudError
from tests.cloud.conftest import launch

# What a launch asks RunInstances for, by place, way and subnet.


SUBNET = "subnet-0000000b"


def asked(way: str = "on-demand", subnet: str = SUBNET, **place: Any) -> Any:
    launch = Launch("ami-1", "g5.xlarge", "key", {"b": "2", "a": "1"}, "#!/bin/sh")
    return request(launch, place_of({"name": "aws", "region": "us-east-1", **place}), Way.parse(way), subnet, None)  # type: ignore[arg-type]


def test_instances_require_imds_v2_and_end_when_they_shut_down() -> None:
    made = asked(instance_profile="node")
    assert made["MetadataOptions"]["HttpTokens"] == "required"
    assert made["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert made["IamInstanceProfile"] == {"Name": "node"}
    assert {row["ResourceType"] for row in made["TagSpecifications"]} == {"instance", "volume", "network-interface"}
    assert all(row["Tags"] == tag_list({"a": "1", "b": "2"}) for row in made["TagSpecifications"])


@pytest.mark.parametrize(
    ("interface", "subnet", "public"),
    [("private_ip", SUBNET, False), ("public_ip", SUBNET, True), ("public_ip", "", False)],
)
def test_the_subnet_of_the_attempt_counts(interface: str, subnet: str, public: bool) -> None:
    made = asked(subnet=subnet, subnet_ids=("subnet-0000000a",), security_group_ids=("sg-1",), ssh_interface=interface)
    (card,) = made.get("NetworkInterfaces", [{}])
    assert (made.get("SubnetId") or card.get("SubnetId") or "") == subnet
    assert (made.get("SecurityGroupIds") or card.get("Groups")) == ["sg-1"]
    assert card.get("AssociatePublicIpAddress", False) is public


def test_the_way_is_asked_for() -> None:
    assert "InstanceMarketOptions" not in asked()
    assert asked("spot")["InstanceMarketOptions"]["MarketType"] == "spot"
    block = asked("capacity-block:cr-00000001")
    assert block["InstanceMarketOptions"] == {"MarketType": "capacity-block"}
    assert "cr-00000001" in str(block["CapacityReservationSpecification"])


def test_several_machines_are_all_or_none_in_their_group() -> None:
    assert (asked()["MinCount"], asked()["MaxCount"]) == (1, 1) and "Placement" not in asked()
    launch = Launch("ami-1", "g5.xlarge", "key", {}, "", count=4, placement_group="gpu-ami-run")
    made: Any = request(launch, Place("aws", "us-east-1"), Way.parse("on-demand"), SUBNET, None)  # type: ignore[arg-type]
    assert (made["MinCount"], made["MaxCount"], made["Placement"]) == (4, 4, {"GroupName": "gpu-ami-run"})
    block: Any = request(launch, Place("aws", "us-east-1"), Way.parse("capacity-block:cr-00000001"), SUBNET, None)  # type: ignore[arg-type]
    assert block["MinCount"] == 4 and "Placement" not in block


def test_a_launch_without_an_event_is_never_cancelled() -> None:
    event = threading.Event()
    launch = Launch("ami-1", "g5.xlarge", "key", {}, "", cancelled=event)
    assert not launch.is_cancelled and not Launch("ami-1", "g5.xlarge", "key", {}, "").is_cancelled
    event.set()
    assert launch.is_cancelled


# The end of an instance from outside: its schedule, and that nothing runs without one where the place wants it.


ROLE = "arn:aws:iam::123456789012:role/gpu-ami-dead-man"


@pytest.fixture
def guarded() -> Iterator[Cloud]:
    with mock_aws():
        yield Cloud(Place(name="aws", region="us-east-1", dead_man_role=ROLE, login=Login(ssh_interface="private_ip")))


def schedules(cloud: Cloud) -> list[str]:
    return [row["Name"] for row in cloud.client("scheduler").list_schedules()["Schedules"]]


def test_an_instance_is_terminated_by_aws_at_its_expiry(guarded: Cloud, run: runs.Run) -> None:
    instance = launch(guarded, run)
    assert schedules(guarded) == [launches.schedule_name(instance)]
    schedule = guarded.client("scheduler").get_schedule(Name=launches.schedule_name(instance))
    tags = {tag["Key"]: tag["Value"] for tag in guarded.instance(instance)["Tags"]}
    assert schedule["ScheduleExpression"] == f"at({tags[runs.TAG_EXPIRES].removesuffix('Z')})"
    assert schedule["ScheduleExpressionTimezone"] == "UTC" and schedule["ActionAfterCompletion"] == "DELETE"
    target = schedule["Target"]
    assert (target["Arn"], target["RoleArn"]) == ("arn:aws:scheduler:::aws-sdk:ec2:terminateInstances", ROLE)
    assert json.loads(target["Input"]) == {"InstanceIds": [instance]}
    guarded.terminate([instance])
    assert schedules(guarded) == []
    guarded.terminate([instance])  # the schedule has gone already


def test_no_instance_stays_without_its_schedule(guarded: Cloud, run: runs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise CloudError("CreateSchedule: AccessDeniedException")

    monkeypatch.setattr(launches, "arm_dead_man", refuse)
    with pytest.raises(CloudError, match="CreateSchedule"):
        launch(guarded, run)
    (reservation,) = guarded.ec2.describe_instances()["Reservations"]
    assert reservation["Instances"][0]["State"]["Name"] == "terminated"


def test_a_place_without_a_role_has_no_schedules(cloud: Cloud, run: runs.Run) -> None:
    cloud.terminate([launch(cloud, run)])
    assert schedules(cloud) == []
