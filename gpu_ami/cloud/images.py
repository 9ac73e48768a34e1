"""An AMI of a running instance, for a builder that Packer did not launch (gpu_ami.build.builder)."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING

from gpu_ami.cloud import aws_errors, runs
from gpu_ami.cloud.launches import tag_list
from gpu_ami.errors import CloudError

if TYPE_CHECKING:
    from gpu_ami.cloud.client import Cloud

_POLL_SECONDS = 2.0


def create(cloud: Cloud, instance_id: str, name: str, tags: Mapping[str, str], expires: str, timeout: float) -> str:
    """Id of a complete AMI of the instance, which EC2 shuts down for it, so that its files are all on the disk.

    tags: of AMI and snapshots. Until the AMI is complete it has the expiry `expires` (RFC 3339), by which `sweep`
    removes what an interrupted run left. timeout: seconds. CloudError: EC2 refused or failed it, or it is not complete.
    """
    incomplete = tag_list({**tags, runs.TAG_EXPIRES: expires})
    with aws_errors.translated(f"creating an image of {instance_id}"):
        ami = cloud.ec2.create_image(
            InstanceId=instance_id,
            Name=name,
            TagSpecifications=[
                {"ResourceType": "image", "Tags": incomplete}, {"ResourceType": "snapshot", "Tags": incomplete},
            ],
        )["ImageId"]  # fmt: skip
    cloud.created(ami)
    snapshots = _wait(cloud, ami, time.monotonic() + timeout)
    with aws_errors.translated(f"tagging {ami}"):
        cloud.ec2.create_tags(Resources=[ami, *snapshots], Tags=tag_list(tags))
    return ami


def _wait(cloud: Cloud, ami: str, deadline: float) -> list[str]:
    """The snapshots of an AMI as soon as it is available."""
    state = "unknown"
    while time.monotonic() < deadline:
        try:
            image = cloud.image(ami)
        except CloudError as error:
            if not aws_errors.is_throttled(error.code):
                raise
            image = None
        state = image.get("State", "unknown") if image else state
        if image and state == "available":
            devices = image.get("BlockDeviceMappings", [])
            return [device["Ebs"]["SnapshotId"] for device in devices if "SnapshotId" in device.get("Ebs", {})]
        if image and state in ("failed", "error", "invalid", "deregistered"):
            reason = image.get("StateReason", {}).get("Message", "no reason given")
            raise CloudError(f"image {ami} is {state}: {reason}", hint="build again; `gpu-ami sweep` removes it")
        time.sleep(_POLL_SECONDS)
    raise CloudError(f"image {ami} is {state} at the end of the build's time, expected available", hint="build again")
