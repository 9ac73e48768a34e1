"""Tagged resources of a place: lists and removes everything that can cost money or hold a secret."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from gpu_ami.cloud import aws_errors, log_groups
from gpu_ami.cloud.client import Cloud, tags_of
from gpu_ami.cloud.launches import tag_list
from gpu_ami.errors import CloudError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, ImageTypeDef, InstanceTypeDef

# A group or volume stays in use for a moment after its instance has ended, a snapshot after its image.
_IN_USE = {"DependencyViolation", "InvalidGroup.InUse", "InvalidSnapshot.InUse", "VolumeInUse"}
IN_USE_SECONDS, _POLL_SECONDS, _SAID_AGAIN_SECONDS = 60.0, 2.0, 20.0
_ENDING_SECONDS = 300.0  # of an instance
# A tag that was just set may not count yet in the policy of whoever removes the resource.
_NOT_TAGGED_YET = {"UnauthorizedOperation"}
IMAGE_PREFIX = "gpu-ami"  # packer/source.pkr.hcl, image_name


@dataclass(frozen=True)
class Resource:
    """One thing in the cloud.

    attached: temporary key pairs and security groups that a Packer builder came with; snapshots of an image.
    untagged: it has no tags yet; `tags` are those that it gets before it is removed.
    """

    kind: str
    id: str
    tags: Mapping[str, str]
    state: str = ""
    attached: tuple[tuple[str, str], ...] = ()
    untagged: bool = False


def tagged(cloud: Cloud, key: str) -> list[Resource]:
    """Everything here that can hold money or a secret and carries the tag `key`: what `sweep` looks through.

    Images and snapshots are among them: `sweep` takes only those that are incomplete or past their time.
    """
    only: list[FilterTypeDef] = [{"Name": "tag-key", "Values": [key]}]
    resources: list[Resource] = []
    with aws_errors.translated(f"listing what carries the tag {key}"):
        for reservations in cloud.ec2.get_paginator("describe_instances").paginate(Filters=only):
            for reservation in reservations["Reservations"]:
                resources += [_instance_resource(instance) for instance in reservation["Instances"]]
        for pair in cloud.ec2.describe_key_pairs(Filters=only)["KeyPairs"]:
            resources.append(Resource("key-pair", pair["KeyName"], tags_of(pair)))
        for groups in cloud.ec2.get_paginator("describe_security_groups").paginate(Filters=only):
            for group in groups["SecurityGroups"]:
                resources.append(Resource("security-group", group["GroupId"], tags_of(group)))
        for volumes in cloud.ec2.get_paginator("describe_volumes").paginate(Filters=only):
            for volume in volumes["Volumes"]:
                resources.append(Resource("volume", volume["VolumeId"], tags_of(volume), volume["State"]))
        for images in cloud.ec2.get_paginator("describe_images").paginate(
            Owners=["self"], Filters=only, IncludeDeprecated=True
        ):
            resources += [image_resource(image) for image in images["Images"]]
        for snapshots in cloud.ec2.get_paginator("describe_snapshots").paginate(OwnerIds=["self"], Filters=only):
            for snapshot in snapshots["Snapshots"]:
                resources.append(Resource("snapshot", snapshot["SnapshotId"], tags_of(snapshot), snapshot["State"]))
    gone = ("terminated", "shutting-down", "deleting", "in-use")
    return [resource for resource in resources if resource.state not in gone]


def named_keys(cloud: Cloud, name: str) -> list[str]:
    """Key pairs of exactly this name: Packer's temporary one carries no tag in old releases, only its name."""
    with aws_errors.translated(f"looking for key pair {name}"):
        pairs = cloud.ec2.describe_key_pairs(Filters=[{"Name": "key-name", "Values": [name]}])["KeyPairs"]
    return [pair["KeyName"] for pair in pairs]


def untagged_of(cloud: Cloud, builder: str, tags: Mapping[str, str]) -> list[Resource]:
    """Images of a builder that have no tag of a run, and snapshots that images left: Packer before 1.7 tags them late.

    tags: those that they would get. What somebody made of the builder by hand has another name and is left alone.
    """
    of_image: list[FilterTypeDef] = [{"Name": "source-instance-id", "Values": [builder]}]
    text = f"Created by CreateImage({builder}) for "  # EC2's description of such a snapshot
    of_snapshot: list[FilterTypeDef] = [{"Name": "description", "Values": [f"{text}*"]}]
    with aws_errors.translated(f"looking for images of builder {builder}"):
        pages = cloud.ec2.get_paginator("describe_images").paginate(Owners=["self"], Filters=of_image)
        images = [image for page in pages for image in page["Images"]]
        listed = cloud.ec2.get_paginator("describe_snapshots").paginate(OwnerIds=["self"], Filters=of_snapshot)
        snapshots = [snapshot for page in listed for snapshot in page["Snapshots"]]
    half_made = [image for image in images if image.get("Name", "").startswith(IMAGE_PREFIX) and not tags_of(image)]
    complete = {image["ImageId"] for image in images if image not in half_made}
    resources = [replace(image_resource(image), tags=tags, untagged=True) for image in half_made]
    for snapshot in snapshots:
        image_id = re.match(r"[\w-]*", snapshot.get("Description", "").removeprefix(text))
        if image_id and image_id[0] not in complete and not tags_of(snapshot):
            resources.append(Resource("snapshot", snapshot["SnapshotId"], tags, snapshot["State"], untagged=True))
    return resources


def _claim(cloud: Cloud, resource: Resource) -> None:
    """Tags what has no tags: the caller's policy allows the removal of tagged resources alone."""
    with aws_errors.translated(f"tagging {resource.kind} {resource.id}"):
        cloud.ec2.create_tags(Resources=[resource.id], Tags=tag_list(resource.tags))


def remove(cloud: Cloud, resource: Resource) -> None:
    """Ends one leftover; instances are waited for, since what hangs on them can go only afterwards."""
    if resource.kind == "instance":
        cloud.terminate([resource.id])
        if cloud.persistent(lambda: cloud.instance(resource.id))["State"]["Name"] != "terminated":
            cloud.say(f"instance {resource.id}: terminating; waiting up to {_ENDING_SECONDS:.0f} s")
            cloud.wait_for_state(resource.id, "terminated", _ENDING_SECONDS)
        return
    if resource.kind == "log-group":
        retried(lambda: log_groups.delete(cloud, resource.id), (), IN_USE_SECONDS, cloud.say)
        return
    if resource.untagged:
        _claim(cloud, resource)
    passing = _IN_USE | (_NOT_TAGGED_YET if resource.untagged else set())
    retried(lambda: _remove(cloud, resource), passing, IN_USE_SECONDS, cloud.say)


def retried(
    removal: Callable[[], None], passing: Collection[str], seconds: float, say: Callable[[str], object]
) -> None:
    """Tries a removal again for so long while it is refused with one of these codes, or for its rate. CloudError.

    say: gets a line where it is tried again, and at times while that goes on.
    """
    deadline, said = time.monotonic() + seconds, float("-inf")
    while True:
        try:
            return removal()
        except CloudError as error:
            passes = error.code in passing or aws_errors.may_pass(error)
            if not passes or time.monotonic() >= deadline:
                raise
            now = time.monotonic()
            if now - said >= _SAID_AGAIN_SECONDS:
                said = now
                say(f"{error.message}; trying again for up to {max(deadline - now, 0):.0f} s")
        time.sleep(_POLL_SECONDS)


def _remove(cloud: Cloud, resource: Resource) -> None:
    with aws_errors.translated(f"removing {resource.kind} {resource.id}"):
        if resource.kind == "key-pair":
            cloud.ec2.delete_key_pair(KeyName=resource.id)
        elif resource.kind == "security-group":
            cloud.ec2.delete_security_group(GroupId=resource.id)
        elif resource.kind == "volume":
            cloud.ec2.delete_volume(VolumeId=resource.id)
        elif resource.kind == "image":
            cloud.ec2.deregister_image(ImageId=resource.id)
        elif resource.kind == "snapshot":
            cloud.ec2.delete_snapshot(SnapshotId=resource.id)
        else:
            raise CloudError(f"{resource.kind} {resource.id}: unsupported resource type")


def image_resource(image: ImageTypeDef) -> Resource:
    """An AMI, with its snapshots attached."""
    devices = image.get("BlockDeviceMappings", [])
    snapshots = [device["Ebs"]["SnapshotId"] for device in devices if "SnapshotId" in device.get("Ebs", {})]
    attached = tuple(("snapshot", snapshot) for snapshot in snapshots)
    return Resource("image", image["ImageId"], tags_of(image), image["State"], attached)


def _instance_resource(instance: InstanceTypeDef) -> Resource:
    # Packer names what it makes for one build packer_<uuid>; other groups and keys belong to somebody.
    groups = [
        ("security-group", group["GroupId"])
        for group in instance.get("SecurityGroups", [])
        if group["GroupName"].startswith("packer_")
    ]
    key = instance.get("KeyName", "")
    keys = [("key-pair", key)] if key.startswith(("packer_", "gpu-ami-")) else []
    state = instance["State"]["Name"]
    return Resource("instance", instance["InstanceId"], tags_of(instance), state, tuple(keys + groups))
