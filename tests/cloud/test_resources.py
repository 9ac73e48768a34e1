"""Tagged resources: each kind is listed with its tags and what belongs to it, and can be removed.

Layer images: found by their digest, the newest first, and used while they are young.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.cloud import Cloud, Launch, Place, amis, resources
from gpu_ami.cloud.amis import LayerImage
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


NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
DIGEST = f"sha256:{'1' * 64}"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        yield Cloud(Place(name="aws", region="us-east-1"))


def an_image(cloud: Cloud, name: str, **tags: str) -> str:
    ami = str(cloud.ec2.register_image(Name=name, RootDeviceName="/dev/sda1")["ImageId"])
    listed: Any = [{"Key": f"gpu-ami:{key}", "Value": value} for key, value in tags.items()]
    if listed:
        cloud.ec2.create_tags(Resources=[ami], Tags=listed)
    return ami


def test_images_are_found_by_the_digest_of_their_layer(cloud: Cloud) -> None:
    tags: Any = {"layer": "driver", "layer-digest": DIGEST, "expires": "2026-11-30T00:00:00Z"}
    made = an_image(cloud, "the layer", **tags)
    an_image(cloud, "another", **(tags | {"layer-digest": f"sha256:{'2' * 64}"}))
    an_image(cloud, "a finished image")
    found = amis.find(cloud, [DIGEST])
    assert [(digest, image.ami, image.layer, image.expires, image.root_device) for digest, image in found.items()] == [
        (DIGEST, made, "driver", "2026-11-30T00:00:00Z", "/dev/sda1")
    ]
    assert amis.find(cloud, []) == {}


@pytest.mark.parametrize(
    ("created", "expires", "fresh"),
    [
        ("2026-11-20T00:00:00.000Z", "2999-01-01T00:00:00Z", True),
        ("2026-11-16T11:59:00.000Z", "2999-01-01T00:00:00Z", False),  # older than a week
        ("2026-11-20T00:00:00.000Z", "2000-01-01T00:00:00Z", False),  # sweep removes it at any moment
        ("", "2999-01-01T00:00:00Z", False),
    ],
)
def test_an_image_is_used_while_it_is_young(created: str, expires: str, fresh: bool) -> None:
    image = LayerImage("ami-1", "driver", DIGEST, created, expires)
    assert image.is_fresh(timedelta(days=7), NOW) is fresh


@pytest.mark.parametrize(("tags", "layer"), [({"gpu-ami:layer": "driver"}, "driver"), ({"Name": "x"}, "")])
def test_an_image_says_which_layer_it_is_of(tags: dict[str, str], layer: str) -> None:
    assert amis.layer_of(tags) == layer
