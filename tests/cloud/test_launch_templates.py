"""Launch templates: what a proof launches with, made in EC2, by CloudFormation, or printed."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.cloud import Cloud, Launch, Login, Network, Place, launch_templates
from gpu_ami.cloud.capacity import Way
from gpu_ami.cloud.launches import request
from gpu_ami.errors import UsageError
from tests.cloud.conftest import an_ami

Wish = launch_templates.Wish
TAGS = {"gpu-ami:recipe": "al2023-compute"}


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """An account with a subnet, a security group and an instance profile."""
    with mock_aws():
        plain = Cloud(Place(name="aws", region="us-east-1"))
        subnet = plain.ec2.describe_subnets()["Subnets"][0]["SubnetId"]
        group = plain.ec2.describe_security_groups()["SecurityGroups"][0]["GroupId"]
        plain.client("iam").create_instance_profile(InstanceProfileName="gpu-node")
        network, login = Network((subnet,), (group,)), Login(ssh_interface="private_ip")
        yield Cloud(Place("aws", "us-east-1", instance_profile="gpu-node", network=network, login=login))


def template(
    cloud: Cloud, instance_type: str = "p4d.24xlarge", efa: int = 4, **wish: Any
) -> launch_templates.LaunchTemplate:
    launch = Launch(an_ami(cloud), instance_type, "", TAGS, "", efa)
    return launch_templates.describe(cloud, "al2023-compute", launch, Wish(**wish))


def launched(cloud: Cloud, **asked: Any) -> dict[str, Any]:
    """What DescribeInstances says of a launch, without what differs between any two instances."""
    made = cloud.ec2.run_instances(**asked)["Instances"][0]["InstanceId"]
    instance: dict[str, Any] = dict(cloud.instance(made))
    cards = [
        (card["SubnetId"], [group["GroupId"] for group in card["Groups"]], card["Attachment"]["DeviceIndex"])
        for card in instance["NetworkInterfaces"]
    ]
    own = {key: instance.get(key) for key in ("ImageId", "InstanceType", "SubnetId", "Tags", "InstanceLifecycle")}
    profile = {"IamInstanceProfile": instance.get("IamInstanceProfile", {}).get("Arn")}
    return own | profile | {"cards": cards, "MetadataOptions": instance["MetadataOptions"]}


@pytest.mark.parametrize(
    ("instance_type", "efa", "way"),
    [("p4d.24xlarge", 4, "on-demand"), ("p4d.24xlarge", 0, "on-demand"), ("g5.xlarge", 0, "spot")],
)
def test_an_instance_of_the_template_is_the_proof_s(cloud: Cloud, instance_type: str, efa: int, way: str) -> None:
    """EC2 takes a template's data as RunInstances' own parameters (moto merges only a part of them)."""
    made = launch_templates.make(cloud, template(cloud, instance_type, efa, way=way))
    versions = cloud.ec2.describe_launch_template_versions(LaunchTemplateId=made.id, Versions=["$Default"])
    data: dict[str, Any] = dict(versions["LaunchTemplateVersions"][0]["LaunchTemplateData"])
    launch = Launch(an_ami(cloud), instance_type, "", TAGS, "", efa)
    proof = dict(request(launch, cloud.place, Way.parse(way), cloud.place.network.subnets[0], cloud.ec2))
    proof.pop("KeyName")
    assert launched(cloud, MinCount=1, MaxCount=1, **data) == launched(cloud, **proof)


def test_what_a_template_says(cloud: Cloud) -> None:
    made = template(cloud, key_name="ops", user_data="#!/bin/sh\n", placement_group="train")
    data = made.data
    assert made.name == "al2023-compute-p4d.24xlarge"
    assert [(card["NetworkCardIndex"], card["InterfaceType"]) for card in data["NetworkInterfaces"]] == [
        (0, "efa"), (1, "efa-only"), (2, "efa-only"), (3, "efa-only"),
    ]  # fmt: skip
    assert data["MetadataOptions"]["HttpTokens"] == "required" and data["IamInstanceProfile"] == {"Name": "gpu-node"}
    assert (data["KeyName"], data["Placement"]) == ("ops", {"GroupName": "train"})
    assert base64.b64decode(data["UserData"]) == b"#!/bin/sh\n"
    assert not data.keys() & {"MinCount", "MaxCount", "SubnetId", "SecurityGroupIds", "BlockDeviceMappings"}
    assert "gpu-ami:run" not in json.dumps(made.input())  # sweep would end its instances


def test_without_a_subnet_the_groups_stand_alone(cloud: Cloud) -> None:
    elsewhere = Cloud(Place("aws", "us-east-1", network=Network(security_group_ids=("sg-1",))))
    data = template(elsewhere, "g5.xlarge", 0).data
    assert data["SecurityGroupIds"] == ["sg-1"] and "NetworkInterfaces" not in data


@pytest.mark.parametrize(
    ("way", "market"), [("spot", "spot"), ("capacity-block:cr-00000001", "capacity-block"), ("on-demand", None)]
)
def test_the_way_to_capacity(cloud: Cloud, way: str, market: str | None) -> None:
    data = template(cloud, "p5.48xlarge", 0, way=way).data
    assert data.get("InstanceMarketOptions", {}).get("MarketType") == market
    assert ("cr-00000001" in str(data.get("CapacityReservationSpecification"))) is way.endswith("cr-00000001")


@pytest.mark.parametrize("way", ["on-demand", "spot", "capacity-block:cr-00000001"])
def test_a_node_group_gets_nothing_that_it_refuses(cloud: Cloud, way: str) -> None:
    """EKS API reference, LaunchTemplateSpecification: no SubnetId, IamInstanceProfile, Spot or shutdown behaviour."""
    data = template(cloud, "p5.48xlarge", 1, way=way, node_group=True).data
    assert not data.keys() & {"SubnetId", "IamInstanceProfile", "InstanceInitiatedShutdownBehavior"}
    assert all("SubnetId" not in card and card["Groups"] for card in data["NetworkInterfaces"])
    market = {"MarketType": "capacity-block"} if way.startswith("capacity") else {}
    assert data.get("InstanceMarketOptions", {}) == market


def test_a_second_make_is_a_new_default_version(cloud: Cloud) -> None:
    first = launch_templates.make(cloud, template(cloud))
    second = launch_templates.make(cloud, template(cloud, placement_group="train"))
    assert (second.id, first.version, second.version) == (first.id, 1, 2)
    [row] = cloud.ec2.describe_launch_templates(LaunchTemplateNames=[first.name])["LaunchTemplates"]
    tags = {tag["Key"]: tag["Value"] for tag in row["Tags"]}
    assert (row["DefaultVersionNumber"], tags) == (2, TAGS | {launch_templates.TAG_IMAGE: "al2023-compute"})


def test_cloudformation_makes_the_same_template(cloud: Cloud) -> None:
    """A stack of the printed document has templates with the same data as those made by the API."""
    templates = [template(cloud), template(cloud, "g5.xlarge", 0)]
    document = launch_templates.cloudformation(templates)
    assert list(document["Resources"]) == ["LaunchTemplateP4D24Xlarge", "LaunchTemplateG5Xlarge"]
    stacks = cloud.client("cloudformation")
    stacks.create_stack(StackName="fleet", TemplateBody=json.dumps(document))
    for one in templates:
        version = cloud.ec2.describe_launch_template_versions(LaunchTemplateName=one.name, Versions=["$Latest"])
        data = version["LaunchTemplateVersions"][0]["LaunchTemplateData"]
        assert (data["ImageId"], data["InstanceType"]) == (one.data["ImageId"], one.instance_type)
        assert len(data.get("NetworkInterfaces", [])) == len(one.data.get("NetworkInterfaces", []))


def test_root_volume(cloud: Cloud) -> None:
    image: Any = cloud.image(an_ami(cloud))
    own = image["BlockDeviceMappings"][0]["Ebs"]["VolumeSize"]
    assert image["BlockDeviceMappings"][0]["DeviceName"] == image["RootDeviceName"] and own > 1
    volume = {"VolumeSize": own + 9, "VolumeType": "gp3", "DeleteOnTermination": True}
    data = template(cloud, root_volume_gib=own + 9).data
    assert data["BlockDeviceMappings"] == [{"DeviceName": image["RootDeviceName"], "Ebs": volume}]
    with pytest.raises(UsageError, match=rf"--root-volume-gib: expected at least {own}, the size of ami-.*, got 1$"):
        template(cloud, root_volume_gib=1)
    with pytest.raises(UsageError, match="ami-0000000000000000f is not in us-east-1"):
        missing = Launch("ami-0000000000000000f", "g5.xlarge", "", TAGS, "")
        launch_templates.describe(cloud, "x", missing, Wish(root_volume_gib=50))
