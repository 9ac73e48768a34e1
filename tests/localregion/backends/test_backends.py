"""EC2's and Logs' models of the region, and what the metadata service says of an instance."""

from __future__ import annotations

import base64
import dataclasses
import time
from types import SimpleNamespace
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError

from localregion.backends import logs
from localregion.backends.ec2 import named_key
from localregion.backends.instance import InstanceView
from tests.localregion.conftest import BASE_ID, PUBLIC_KEY, Region, World

# What an instance knows of itself.


FIRST_SUBNET = "127.99.0.0/17"  # half of the region's network: it has two zones


def test_a_view_has_what_the_launch_asked_for(world: World) -> None:
    data = base64.b64encode(b"#cloud-config").decode()
    view = world.ec2.view(world.launch(user_data=data, instance_type="p4d.24xlarge"))
    assert isinstance(view, InstanceView)
    assert (view.image_id, view.instance_type, view.user_data) == (BASE_ID, "p4d.24xlarge", b"#cloud-config")
    assert (view.key_name, view.public_key, view.subnet_cidr) == ("k", PUBLIC_KEY, FIRST_SUBNET)
    assert view.tags == {"Name": "one"}
    assert view.security_groups == ((world.ec2.group_id, "gpu-ami-local"),)
    assert (view.profile_arn, view.role) == (None, None)


def test_a_key_has_its_pair_s_name_in_the_metadata() -> None:
    """As in EC2's user guide (public-keys/0/openssh-key). Packer removes its own key from an image by that name."""
    assert named_key("ssh-rsa AAAA", "packer_1") == "ssh-rsa AAAA packer_1"
    assert named_key(PUBLIC_KEY, "mine") == PUBLIC_KEY


def test_a_view_does_not_change(world: World) -> None:
    view = world.ec2.view(world.launch())
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.address = "127.0.0.1"  # type: ignore[misc]


def test_a_mapping_of_an_instance_store_volume_needs_no_ebs_volume(region: Region) -> None:
    """As in the dry runs of `pcluster create-cluster` (3.16.1), which map the 24 that Linux may have."""
    _, endpoint = region("")
    ec2 = client(endpoint)
    volumes = [{"DeviceName": f"/dev/xvdb{letter}", "VirtualName": f"ephemeral{n}"} for n, letter in enumerate("abc")]
    root = {"DeviceName": "/dev/xvda", "Ebs": {"VolumeType": "gp3"}}
    launch = {"ImageId": BASE_ID, "InstanceType": "g5.12xlarge", "MinCount": 1, "MaxCount": 1, "DryRun": True}
    with pytest.raises(ClientError, match="DryRunOperation"):
        ec2.run_instances(BlockDeviceMappings=[*volumes, root], **launch)
    with pytest.raises(ClientError, match="must contain the parameter ebs"):
        ec2.run_instances(BlockDeviceMappings=[{"DeviceName": "/dev/xvdz"}], **launch)
    with pytest.raises(ClientError, match="size or snapshotId"):
        ec2.run_instances(BlockDeviceMappings=[{"DeviceName": "/dev/xvdz", "Ebs": {"VolumeType": "gp3"}}], **launch)


# Log events that readers see late.


def client(endpoint: str, service: str = "ec2") -> Any:
    return boto3.client(
        service,  # type: ignore[call-overload]
        endpoint_url=endpoint,
        region_name="us-east-1",
        aws_access_key_id="local",
        aws_secret_access_key="local",
        config=Config(retries={"total_max_attempts": 1}),
    )


def test_log_events_are_seen_late(region: Region, monkeypatch: pytest.MonkeyPatch) -> None:
    _, endpoint = region("late-telemetry")
    ago = 0.0
    monkeypatch.setattr(logs, "time", SimpleNamespace(time=lambda: time.time() + ago))
    client_ = client(endpoint, "logs")
    stream = {"logGroupName": "g", "logStreamName": "s"}
    client_.create_log_group(logGroupName="g")
    client_.create_log_stream(**stream)
    client_.put_log_events(logEvents=[{"timestamp": int(time.time() * 1000), "message": "m"}], **stream)

    def messages() -> list[str]:
        return [event["message"] for event in client_.get_log_events(startFromHead=True, **stream)["events"]]

    assert (messages(), client_.filter_log_events(logGroupName="g")["events"]) == ([], [])
    ago = 11.0
    assert messages() == ["m"]
    assert len(client_.filter_log_events(logGroupName="g")["events"]) == 1


# EC2 as moto models it and the region corrects it.


def test_the_root_volume_is_the_image_s(world: World) -> None:
    instance = world.launch()
    volume = world.ec2.root_volume(instance)
    assert (list(instance.block_device_mapping), volume.size) == (["/dev/xvda"], 8)
    assert volume.snapshot_id == "snap-0000000000000000b"


def test_an_address_is_of_the_region_s_network(world: World) -> None:
    instance = world.launch()
    assert instance.private_ip.startswith("127.99.")
    assert list(world.ec2.backend.subnets) == ["us-east-1a", "us-east-1b"] and len(world.ec2.backend.vpcs) == 1


def test_each_subnet_is_in_a_zone_of_its_own(world: World) -> None:
    assert [world.ec2.zone_of(subnet) for subnet in world.ec2.subnet_ids] == ["us-east-1a", "us-east-1b"]
    instance = world.launch(subnet_id=world.ec2.subnet_ids[1])
    view = world.ec2.view(instance)
    assert view.zone == "us-east-1b" and view.subnet_cidr == "127.99.128.0/17"
    assert view.address.startswith("127.99.")


def test_a_reason_is_shown_and_taken_back(world: World) -> None:
    instance = world.launch()
    world.ec2.set_state(instance, "stopping", "Server.InternalError", "QEMU ended")
    assert (instance.state, instance.state_reason.code) == ("stopping", "Server.InternalError")
    assert instance.state_reason.message == "Server.InternalError: QEMU ended"
    world.ec2.set_reason(instance)
    assert (instance.state, instance.state_reason) == ("stopping", None)


def test_a_parameter_points_to_the_newest_image(world: World) -> None:
    from moto.ssm.models import ssm_backends

    name = "/aws/service/eks/image_id"
    for image_id in ("ami-1", "ami-2"):
        world.ec2.point_parameter(name, image_id)
    found, _ = ssm_backends[world.ec2.account]["us-east-1"].get_parameter_history(name, None)
    assert found
    assert [(one.value, one.version) for one in found][-2:] == [
        ("ami-1", found[-2].version),
        ("ami-2", found[-1].version),
    ]
    assert found[-1].version == found[-2].version + 1


def test_a_registered_image_has_its_record_s_disk_and_snapshot(world: World) -> None:
    image = world.ec2.images()[BASE_ID]
    assert image.block_device_mappings[0]["Ebs"]["SnapshotId"] == "snap-0000000000000000b"
    assert (image.root_device_name, image.owner_id, image.state) == ("/dev/xvda", "136693071363", "available")
