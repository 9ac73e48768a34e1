"""An AMI of a running instance: its tags before and after it is complete, and what is said where it is not made."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from gpu_ami.cloud import ApiAccess, Cloud, Place, amis, tags_of
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import CloudError
from localregion.machines.qemu import Exit
from tests.aws_requests import Checked
from tests.localregion.conftest import World, empty_moto, endpoint, world

__all__ = ["empty_moto", "endpoint", "world"]

TAGS = {"Name": "gpu-ami_x-1", "gpu-ami:run": "r-1", "gpu-ami:expires": "never"}
EXPIRES = "2030-01-31T12:00:00Z"


@pytest.fixture
def cloud(endpoint: str) -> Cloud:
    place = Place("local", "us-east-1", api=ApiAccess(endpoint=endpoint, credentials=Credentials("local", "local")))
    return Cloud(place)


def running(world: World) -> Any:
    instance = world.launch()
    world.settle()
    return instance


def described(cloud: Cloud) -> Any:
    (image,) = cloud.ec2.describe_images(Owners=["self"])["Images"]
    return image


def test_an_image_expires_until_it_is_complete(cloud: Cloud, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    instance, seen = running(world), list[dict[str, str]]()
    monkeypatch.setattr(amis, "POLL_SECONDS", 0.05)

    def shut_down() -> None:
        world.settle()  # EC2 shuts the guest down for it
        seen.append(tags_of(described(cloud)))
        world.machine.ended = Exit("shutdown")
        world.settle()

    timer = threading.Timer(3.0, shut_down)
    timer.start()
    ami = amis.create(cloud, instance.id, "gpu-ami_x-1", TAGS, EXPIRES, timeout=60)
    timer.join()
    assert seen == [{**TAGS, "gpu-ami:expires": EXPIRES}]
    image = described(cloud)
    assert (image["ImageId"], image["State"], tags_of(image)) == (ami, "available", TAGS)
    (snapshot,) = cloud.ec2.describe_snapshots(SnapshotIds=[image["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]])[
        "Snapshots"
    ]
    assert tags_of(snapshot) == TAGS


@pytest.mark.parametrize(
    ("state", "said"),
    [("failed", "is failed"), ("pending", "is pending at the end of the build's time, expected available")],
)
def test_an_image_that_is_not_complete_is_an_error(
    state: str, said: str, cloud: Cloud, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = running(world)
    monkeypatch.setattr(amis, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(cloud, "image", lambda _: described(cloud) | {"State": state})
    with pytest.raises(CloudError, match=said) as caught:
        amis.create(cloud, instance.id, "gpu-ami_x-1", TAGS, EXPIRES, timeout=0.3)
    assert caught.value.exit_code == 4
    assert cloud.ec2.describe_images(Owners=["self"])["Images"] == []
    assert not any(map(tags_of, cloud.ec2.describe_snapshots(OwnerIds=["self"])["Snapshots"]))


def test_an_incomplete_image_that_cannot_be_removed_is_named(
    cloud: Cloud, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    instance = running(world)
    monkeypatch.setattr(amis, "POLL_SECONDS", 0.05)
    monkeypatch.setattr(cloud, "image", lambda _: described(cloud) | {"State": "failed"})
    refusal = CloudError("removing image: UnauthorizedOperation", code="UnauthorizedOperation")
    stub = Checked("ec2", deregister_image=lambda **_: (_ for _ in ()).throw(refusal))
    monkeypatch.setattr(cloud.ec2, "deregister_image", stub.deregister_image)
    with pytest.raises(CloudError, match="is failed") as caught:
        amis.create(cloud, instance.id, "gpu-ami_x-1", TAGS, EXPIRES, timeout=0.3)
    assert caught.value.details == ("not removed: removing image: UnauthorizedOperation; `gpu-ami sweep` removes it",)
    assert tags_of(described(cloud))["gpu-ami:expires"] == EXPIRES
