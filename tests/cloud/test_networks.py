"""The network interfaces that RunInstances is asked for: address, subnet, groups, EFA on each card that takes one.

Who may connect, by the rules that DescribeSecurityGroups shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.cloud import Cloud, Launch, Login, Network, Place, launches, runs
from gpu_ami.cloud.security_groups import Ingress, covers, own_traffic
from tests.cloud.conftest import PUBLIC_KEY, an_ami, sent_launches


def test_place_reaches_the_launch(run: runs.Run, monkeypatch: pytest.MonkeyPatch) -> None:
    with mock_aws():
        plain = Cloud(Place(name="aws", region="us-east-1"))
        subnet = plain.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        group = plain.ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
        iam = plain.client("iam")
        iam.create_instance_profile(InstanceProfileName="gpu-node")
        cloud = Cloud(
            Place(
                name="aws",
                region="us-east-1",
                instance_profile="gpu-node",
                network=Network(subnet_ids=(subnet,), security_group_ids=(group,)),
            )
        )
        cloud.import_key("k", PUBLIC_KEY, {"for": "tests"})
        sent = sent_launches(monkeypatch, cloud)
        cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "k", run.tags(), ""))
        # A public address is asked for, as the Packer template does: the subnet need not give one by itself.
        interface = {"DeviceIndex": 0, "NetworkCardIndex": 0, "DeleteOnTermination": True}
        network = {"SubnetId": subnet, "Groups": [group], "AssociatePublicIpAddress": True}
        assert sent[0]["NetworkInterfaces"] == [interface | network]
        assert "SubnetId" not in sent[0] and sent[0]["IamInstanceProfile"] == {"Name": "gpu-node"}


@pytest.mark.parametrize(
    ("instance_type", "ssh_interface", "own", "further"),
    [
        ("p4d.24xlarge", "private_ip", "efa", [(1, 1), (2, 1), (3, 1)]),
        ("p4d.24xlarge", "session_manager", "efa", [(1, 1), (2, 1), (3, 1)]),
        ("p4d.24xlarge", "public_ip", "efa", []),
        ("p6-b300.48xlarge", "private_ip", "interface", [(card, 1) for card in range(1, 17)]),  # ENA alone on card 0
        ("p6-b300.48xlarge", "public_ip", "interface", []),
    ],
)
def test_efa_interfaces_are_asked_for_on_the_cards_that_take_one(
    run: runs.Run,
    monkeypatch: pytest.MonkeyPatch,
    instance_type: str,
    ssh_interface: str,
    own: str,
    further: list[tuple[int, int]],
) -> None:
    """A public address is only given to an instance with a single interface."""
    with mock_aws():
        plain = Cloud(Place(name="aws", region="us-east-1"))
        subnet = plain.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        group = plain.ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
        place = Place(
            "aws",
            "us-east-1",
            network=Network(subnet_ids=(subnet,), security_group_ids=(group,)),
            login=Login(ssh_interface=ssh_interface),
        )
        cloud = Cloud(place)
        cloud.import_key("k", PUBLIC_KEY, {"for": "tests"})
        sent = sent_launches(monkeypatch, cloud)
        instance = cloud.launch(Launch(an_ami(cloud), instance_type, "k", run.tags(), "", efa_interfaces=4))
        asked = sent[0]["NetworkInterfaces"]
        assert [(one["NetworkCardIndex"], one["DeviceIndex"]) for one in asked] == [(0, 0), *further]
        kinds = [one.get("InterfaceType", "interface") for one in asked]
        assert kinds == [own, *["efa-only"] * len(further)]
        assert {(one["SubnetId"], *one["Groups"]) for one in asked} == {(subnet, group)}
        assert "SubnetId" not in sent[0] and "SecurityGroupIds" not in sent[0]
        assert cloud.instance(instance)["SubnetId"] == subnet


@pytest.mark.parametrize(
    ("ssh_interface", "subnet", "public"),
    [("public_ip", "subnet-1", True), ("public_dns", "subnet-1", True), ("public_ip", "", False),
     ("private_ip", "subnet-1", False)],
)  # fmt: skip
def test_a_public_address_is_requested_for_a_login_to_it_in_a_named_subnet(
    ssh_interface: str, subnet: str, public: bool
) -> None:
    place = Place("aws", "us-east-1", network=Network(subnet_ids=(subnet,)), login=Login(ssh_interface=ssh_interface))
    assert launches.need_public_address(place) is public
    assert ("AssociatePublicIpAddress" in launches.interface(place)) is public
    assert "AssociatePublicIpAddress" not in launches.interface(place, card=1)


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
        yield Cloud(Place("aws", "us-east-1", login=Login(ssh_port=2022)))


def test_the_groups_of_an_instance_are_asked(cloud: Cloud) -> None:
    ami = cloud.ec2.register_image(Name="base", RootDeviceName="/dev/xvda")["ImageId"]
    vpc = cloud.ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
    made = cloud.ec2.create_security_group(GroupName="g", Description="d", VpcId=vpc)["GroupId"]
    cloud.place = Place("aws", "us-east-1", network=Network(security_group_ids=(made,)), login=Login(ssh_port=2022))
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
