"""Tagged resources: each kind is listed with its tags and what belongs to it, and can be removed."""

from __future__ import annotations

import pytest

from gpu_ami.cloud import resources
from gpu_ami.cloud.client import Cloud, Launch
from gpu_ami.cloud.resources import Resource
from gpu_ami.errors import CloudError
from tests.cloud.conftest import PUBLIC_KEY, an_ami

TAG = "gpu-ami:run"


@pytest.fixture
def tagged(cloud: Cloud) -> dict[str, Resource]:
    """Kind → a resource that carries the tag, and beside each one that does not."""
    group = cloud.ec2.create_security_group(GroupName="packer_1", Description="of a builder")["GroupId"]
    cloud.import_key("packer_2", PUBLIC_KEY, {TAG: "run-1"})
    instance = cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "packer_2", {TAG: "run-1"}, ""))
    cloud.ec2.modify_instance_attribute(InstanceId=instance, Groups=[group])
    image = cloud.ec2.create_image(InstanceId=instance, Name="half-made")["ImageId"]
    volume = cloud.ec2.create_volume(Size=1, AvailabilityZone="us-east-1a")["VolumeId"]
    snapshot = cloud.ec2.create_snapshot(VolumeId=volume)["SnapshotId"]
    cloud.ec2.create_tags(Resources=[group, image, volume, snapshot], Tags=[{"Key": TAG, "Value": "run-1"}])
    cloud.import_key("other", PUBLIC_KEY, {"for": "tests"})
    cloud.ec2.create_volume(Size=1, AvailabilityZone="us-east-1a")
    cloud.launch(Launch(an_ami(cloud), "g5.12xlarge", "other", {"Name": "other"}, ""))
    return {resource.kind: resource for resource in resources.tagged(cloud, TAG)}


def test_every_kind_is_listed_by_its_tag(tagged: dict[str, Resource]) -> None:
    assert set(tagged) == {"instance", "key-pair", "security-group", "volume", "image", "snapshot"}
    assert {resource.tags[TAG] for resource in tagged.values()} == {"run-1"}
    assert set(tagged["instance"].attached) == {
        ("key-pair", "packer_2"), ("security-group", tagged["security-group"].id)
    }  # fmt: skip
    assert [kind for kind, _ in tagged["image"].attached] == ["snapshot"]


def test_every_kind_can_be_removed(cloud: Cloud, tagged: dict[str, Resource]) -> None:
    for kind in ("instance", "image", "snapshot", "key-pair", "security-group", "volume"):
        resources.remove(cloud, tagged[kind])
    assert resources.tagged(cloud, TAG) == []


def test_a_kind_that_cannot_be_removed_is_an_error(cloud: Cloud) -> None:
    with pytest.raises(CloudError, match="vpc vpc-1: unsupported resource type"):
        resources.remove(cloud, Resource("vpc", "vpc-1", {}))


def test_keys_are_found_by_their_exact_name(cloud: Cloud) -> None:
    cloud.import_key("gpu-ami-run-1", PUBLIC_KEY, {"for": "tests"})
    cloud.import_key("gpu-ami-run-1-builder", PUBLIC_KEY, {"for": "tests"})
    assert resources.named_keys(cloud, "gpu-ami-run-1") == ["gpu-ami-run-1"]
    assert resources.named_keys(cloud, "gpu-ami-run") == []
