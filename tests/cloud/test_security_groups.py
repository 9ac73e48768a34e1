"""Who may connect, by the rules that DescribeSecurityGroups shows."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.cloud import Cloud, Launch, Place
from gpu_ami.cloud.security_groups import Ingress, covers, own_traffic


def group(*rules: dict[str, Any], name: str = "sg-1") -> Any:
    return {"GroupId": name, "IpPermissions": list(rules)}


def rule(protocol: str = "tcp", first: int = 22, last: int = 22, **sources: Any) -> dict[str, Any]:
    return {"IpProtocol": protocol, "FromPort": first, "ToPort": last, **sources}


OFFICE = {"IpRanges": [{"CidrIp": "192.0.2.0/24"}]}


@pytest.mark.parametrize(
    ("permission", "expected"),
    [
        (rule(), True), (rule("6", 0, 65535), True), (rule(first=23, last=80), False), (rule("udp"), False),
        (rule("icmp", -1, -1), False), ({"IpProtocol": "-1"}, True),
    ],
)  # fmt: skip
def test_a_permission_covers_a_port(permission: Any, expected: bool) -> None:
    assert covers(permission, 22) is expected


@pytest.mark.parametrize(
    ("groups", "text"),
    [
        ([group(rule(**OFFICE))], "security group sg-1: TCP 22 is allowed from 192.0.2.0/24"),
        ([group(rule(first=443, last=443, **OFFICE))], "security group sg-1: no rule lets TCP 22 in"),
        ([group(), group(name="sg-2")], "security group sg-1, sg-2: no rule lets TCP 22 in"),
        (
            [group(rule(UserIdGroupPairs=[{"GroupId": "sg-9"}]), rule(PrefixListIds=[{"PrefixListId": "pl-1"}]))],
            "security group sg-1: TCP 22 is allowed from pl-1, members of sg-9",
        ),
    ],
)
def test_ingress_says_who_may_connect(groups: list[Any], text: str) -> None:
    ingress = Ingress.of(groups, 22)
    assert str(ingress) == text
    assert ingress.is_closed is ("no rule" in text)
    assert ingress.remedy == f"allow TCP 22 from this machine's address in one of {ingress.names}"


def test_an_instance_without_known_groups_is_not_called_closed(cloud: Cloud) -> None:
    ingress = cloud.ingress([])
    assert (ingress.is_closed, str(ingress)) == (False, "its security groups are not known")
    assert "in one of its security groups" in ingress.remedy


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        yield Cloud(Place("aws", "us-east-1", ssh_port=2022))


def test_the_groups_of_an_instance_are_asked(cloud: Cloud) -> None:
    ami = cloud.ec2.register_image(Name="base", RootDeviceName="/dev/xvda")["ImageId"]
    vpc = cloud.ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    made = cloud.ec2.create_security_group(GroupName="g", Description="d", VpcId=vpc)["GroupId"]
    cloud.place = Place("aws", "us-east-1", ssh_port=2022, security_group_ids=(made,))
    cloud.import_key(
        "k", "ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAIJqMyRWr1wAJYt6OZjNRZqGjpbPFWYzBqkHRmSXLcSVp t", {"a": "b"}
    )
    instance_id = cloud.launch(Launch(ami, "g5.xlarge", "k", {"a": "b"}, ""))
    assert str(cloud.ingress_of_instance(instance_id)) == f"security group {made}: no rule lets TCP 2022 in"
    opened: Any = [rule(first=2022, last=2022, **OFFICE)]
    cloud.ec2.authorize_security_group_ingress(GroupId=made, IpPermissions=opened)
    assert cloud.ingress([made]).ranges == ("192.0.2.0/24",)


SELF = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-1"}]}
OTHER = {"IpProtocol": "-1", "UserIdGroupPairs": [{"GroupId": "sg-9"}]}
ANYWHERE = {"IpProtocol": "-1", "IpRanges": [{"CidrIp": "0.0.0.0/0"}]}
TCP = {"IpProtocol": "tcp", "FromPort": 0, "ToPort": 65535, "UserIdGroupPairs": [{"GroupId": "sg-1"}]}


@pytest.mark.parametrize(
    ("inward", "outward", "efa", "closed"),
    [
        (SELF, SELF, True, []), (SELF, ANYWHERE, True, ["out"]), (SELF, ANYWHERE, False, []),
        (OTHER, SELF, True, ["in"]), (TCP, SELF, True, ["in"]), (ANYWHERE, OTHER, False, ["out"]),
        ({"IpProtocol": "-1"}, {"IpProtocol": "-1"}, False, ["in", "out"]),
    ],
)  # fmt: skip
def test_members_that_may_not_send_everything_to_each_other(
    inward: Any, outward: Any, efa: bool, closed: list[str]
) -> None:
    made: Any = {"GroupId": "sg-1", "IpPermissions": [inward], "IpPermissionsEgress": [outward]}
    assert own_traffic([made], efa=efa) == closed
