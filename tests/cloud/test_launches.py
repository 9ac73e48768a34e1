"""What a launch asks RunInstances for, by place, way and subnet."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gpu_ami.cloud import Launch, Place
from gpu_ami.cloud.capacity import Way
from gpu_ami.cloud.launches import request, tag_list

SUBNET = "subnet-0000000b"


def asked(way: str = "on-demand", subnet: str = SUBNET, **place: Any) -> Any:
    launch = Launch("ami-1", "g5.xlarge", "key", {"b": "2", "a": "1"}, "#!/bin/sh")
    return request(launch, Place("aws", "us-east-1", **place), Way.parse(way), subnet, None)  # type: ignore[arg-type]


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
    made = asked(subnet=subnet, subnet_id="subnet-0000000a", security_group_ids=("sg-1",), ssh_interface=interface)
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


def test_a_launch_without_an_event_is_never_cancelled() -> None:
    event = threading.Event()
    launch = Launch("ami-1", "g5.xlarge", "key", {}, "", cancelled=event)
    assert not launch.is_cancelled and not Launch("ami-1", "g5.xlarge", "key", {}, "").is_cancelled
    event.set()
    assert launch.is_cancelled
