"""The network interfaces that RunInstances is asked for: address, subnet, groups, EFA on each card that takes one."""

from __future__ import annotations

import pytest
from moto import mock_aws

from gpu_ami.cloud import launches, runs
from gpu_ami.cloud.client import Cloud, Launch
from gpu_ami.cloud.place import Place
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
                subnet_id=subnet,
                security_group_ids=(group,),
                instance_profile="gpu-node",
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
        place = Place("aws", "us-east-1", subnet_id=subnet, security_group_ids=(group,), ssh_interface=ssh_interface)
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
    place = Place("aws", "us-east-1", subnet_id=subnet, ssh_interface=ssh_interface)
    assert launches.need_public_address(place) is public
    assert ("AssociatePublicIpAddress" in launches.interface(place)) is public
    assert "AssociatePublicIpAddress" not in launches.interface(place, card=1)
