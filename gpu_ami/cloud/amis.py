"""AMIs of a recipe: those made of a running builder, images of layers by the digest in their tags; what uses an AMI.

Whoever removes images asks for users first: `sweep`, `publish` with `keep`, a rollback's retirement. Launch templates
are looked at in all their versions, since an Auto Scaling group, or a managed node group of EKS, may name any. What
other accounts do with a shared AMI cannot be seen from here; that it is shared can.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import aws_errors, image_parameters, resources, runs
from gpu_ami.cloud.client import Cloud, tags_of
from gpu_ami.cloud.launches import tag_list
from gpu_ami.errors import CloudError, GpuAmiError, UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, ImageTypeDef, TagTypeDef


POLL_SECONDS = 2.0
_GONE_SECONDS = 300.0  # for which an AMI that was made is in no list, before it counts as gone


def create(
    cloud: Cloud,
    instance_id: str,
    name: str,
    tags: Mapping[str, str],
    expires: str,
    *,
    timeout: float,
    on_leftover: Callable[[], object] = lambda: None,
) -> str:
    """Id of a complete AMI of the instance, which EC2 shuts down for it, so that its files are all on the disk.

    tags: of AMI and snapshots. Until the AMI is complete it has the expiry `expires` (RFC 3339), by which `sweep`
    removes what a killed run left. timeout: seconds. CloudError: EC2 refused or failed it, or it is not complete.
    on_leftover: called where one that is not complete could not be removed.
    """
    incomplete = tag_list({**tags, runs.TAG_EXPIRES: expires})
    ami = ""
    try:
        ami = _create(cloud, instance_id, name, incomplete)
        cloud.created(ami)
        snapshots = _wait(cloud, ami, time.monotonic() + timeout)
        cloud.created(ami)  # another server may know it later than the one that called it available
        cloud.repeatable([ami], lambda: _tag(cloud, [ami, *snapshots], tags))
    except BaseException as error:
        if ami:
            _take_back(cloud, ami, error, on_leftover)
        elif not isinstance(error, GpuAmiError) or aws_errors.may_have_happened(error):
            on_leftover()
        raise
    return ami


def _create(cloud: Cloud, instance_id: str, name: str, incomplete: list[TagTypeDef]) -> str:
    """CreateImage, after an hour's build also once more after an outage; an earlier call may have been carried out."""
    calls = 0

    def create_image() -> str:
        nonlocal calls
        calls += 1
        with aws_errors.translated(f"creating an image of {instance_id}"):
            return cloud.ec2.create_image(
                InstanceId=instance_id,
                Name=name,
                TagSpecifications=[
                    {"ResourceType": "image", "Tags": incomplete}, {"ResourceType": "snapshot", "Tags": incomplete},
                ],
            )["ImageId"]  # fmt: skip

    try:
        return cloud.persistent(create_image)
    except CloudError as error:
        if error.code != "InvalidAMIName.Duplicate" or not (calls > 1 or aws_errors.was_repeated(error)):
            raise
        return _made_of(cloud, instance_id, name, error)


def _tag(cloud: Cloud, resource_ids: Sequence[str], tags: Mapping[str, str]) -> None:
    with aws_errors.translated(f"tagging {resource_ids[0]}"):
        cloud.ec2.create_tags(Resources=list(resource_ids), Tags=tag_list(tags))


def _take_back(cloud: Cloud, ami: str, error: BaseException, on_leftover: Callable[[], object]) -> None:
    """Removes an AMI that is not complete, and its snapshots; the error names what `sweep` has to remove."""
    try:
        image = cloud.image(ami)
        whole = resources.image_resource(image) if image else None
        for kind, identity in [("image", ami), *whole.attached] if whole else []:
            resources.remove(cloud, resources.Resource(kind, identity, {}))
    except BaseException as refusal:
        on_leftover()
        if not isinstance(refusal, GpuAmiError):
            raise
        if isinstance(error, GpuAmiError):
            error.details = (*error.details, f"not removed: {refusal.message}; `gpu-ami sweep` removes it")


def _made_of(cloud: Cloud, instance_id: str, name: str, duplicate: CloudError) -> str:
    """The image that an earlier CreateImage made, whose answer was lost. The error: it is of another instance."""
    of_instance: list[FilterTypeDef] = [
        {"Name": "name", "Values": [name]}, {"Name": "source-instance-id", "Values": [instance_id]},
    ]  # fmt: skip
    with aws_errors.translated(f"looking for the image {name}"):
        images = cloud.ec2.describe_images(Owners=["self"], Filters=of_instance)["Images"]
    if not images:
        raise duplicate
    return images[0]["ImageId"]


def _wait(cloud: Cloud, ami: str, deadline: float) -> list[str]:
    """The snapshots of an AMI as soon as it is available and names them."""
    state, listed_at = "unknown", time.monotonic()
    while time.monotonic() < deadline:
        try:
            image = cloud.image(ami)
            _require_listed(cloud, ami, image, listed_at)
            listed_at = time.monotonic() if image else listed_at
        except CloudError as error:
            if not aws_errors.may_pass(error):
                raise
            image, listed_at = None, time.monotonic()  # nothing is known of it
        state = image.get("State", "unknown") if image else state
        volumes = [device["Ebs"] for device in image.get("BlockDeviceMappings", []) if "Ebs" in device] if image else []
        snapshots = [volume["SnapshotId"] for volume in volumes if "SnapshotId" in volume]
        if image and state == "available" and (snapshots or not volumes):
            return snapshots
        if image and state in ("failed", "error", "invalid", "deregistered", "disabled"):
            reason = image.get("StateReason", {}).get("Message", "no reason given")
            raise CloudError(f"image {ami} is {state}: {reason}", hint="build again")
        time.sleep(POLL_SECONDS)
    raise CloudError(f"image {ami} is {state} at the end of the build's time, expected available", hint="build again")


def _require_listed(cloud: Cloud, ami: str, image: ImageTypeDef | None, listed_at: float) -> None:
    """CloudError: an AMI that was made is in no list for so long that it is not late, but gone."""
    seconds = 0.0 if image else time.monotonic() - listed_at
    if seconds > max(cloud.place.api.consistent_seconds, _GONE_SECONDS):
        hint = "somebody deregistered it, or EC2 lost it (CloudTrail: DeregisterImage); build again"
        raise CloudError(f"image {ami} is gone: DescribeImages has not listed it for {seconds:.0f} s", hint=hint)


TAG_LAYER, TAG_DIGEST = "gpu-ami:layer", "gpu-ami:layer-digest"


@dataclass(frozen=True)
class LayerImage:
    """The image of a layer. created, expires: RFC 3339, UTC."""

    ami: str
    layer: str
    digest: str
    created: str
    expires: str
    root_device: str = ""

    @staticmethod
    def of(image: ImageTypeDef) -> LayerImage:
        """Its tags say which layer it is."""
        tags = tags_of(image)
        return LayerImage(
            image["ImageId"],
            tags.get(TAG_LAYER, ""),
            tags.get(TAG_DIGEST, ""),
            image.get("CreationDate", ""),
            tags.get(runs.TAG_EXPIRES, ""),
            image.get("RootDeviceName", ""),
        )

    def is_fresh(self, max_age: timedelta, now: datetime | None = None) -> bool:
        """Whether it is to be used: younger than max_age, and its own expiry is to come."""
        try:
            created = datetime.fromisoformat(self.created)
        except ValueError:
            return False
        created = created if created.tzinfo else created.replace(tzinfo=UTC)
        return (now or runs.now()) - created < max_age and not runs.has_expired(self.expires)


def layer_of(tags: Mapping[str, str]) -> str:
    """The layer that an image is of, by its tags; "" for a finished image."""
    return tags.get(TAG_LAYER, "")


def find(cloud: Cloud, digests: Sequence[str]) -> dict[str, LayerImage]:
    """The newest available image of each layer, by its digest; nothing for a layer without one. CloudError."""
    filters: list[FilterTypeDef] = [
        {"Name": f"tag:{TAG_DIGEST}", "Values": list(digests)},
        {"Name": "state", "Values": ["available"]},
    ]
    with aws_errors.translated("listing layer images"):
        pages = cloud.ec2.get_paginator("describe_images").paginate(Owners=["self"], Filters=filters)
        images = [LayerImage.of(image) for page in pages for image in page["Images"]] if digests else []
    return {image.digest: image for image in sorted(images, key=lambda image: image.created)}


_RECIPE = "gpu-ami:recipe"


def previous(cloud: Cloud, ami: str) -> str:
    """The newest available image of the same recipe and account that is older than `ami`; "" if it is the first.

    UsageError: the AMI is not there, or has no tag of its recipe. CloudError.
    """
    image = cloud.image(ami)
    if image is None:
        raise UsageError(f"{ami} is not in {cloud.place.region}", hint="--where names the place of another region")
    recipe = tags_of(image).get(_RECIPE, "")
    if not recipe:
        hint = "name the image before it: gpu-ami diff --notes BEFORE AFTER"
        raise UsageError(f"{ami} has no tag {_RECIPE}: the image before it is not known", hint=hint)
    filters: list[FilterTypeDef] = [
        {"Name": f"tag:{_RECIPE}", "Values": [recipe]},
        {"Name": "state", "Values": ["available"]},
    ]
    with aws_errors.translated(f"listing the images of {recipe}"):
        pages = cloud.ec2.get_paginator("describe_images").paginate(
            Owners=["self"], Filters=filters, IncludeDeprecated=True
        )
        images = [entry for page in pages for entry in page["Images"]]
    created = image.get("CreationDate", "")
    older = [entry for entry in images if entry["ImageId"] != ami and entry.get("CreationDate", "") < created]
    return max(older, key=lambda entry: entry.get("CreationDate", ""))["ImageId"] if older else ""


_RUNNING = ["pending", "running", "stopping", "stopped", "shutting-down"]


def users(cloud: Cloud, amis: Mapping[str, str], latest: str) -> dict[str, list[str]]:
    """AMI → what uses it, in words. amis: with the name of the parameter that pins each, which goes with it.

    latest: name of the parameter that consumers read; it names the new image by then.
    """
    found: dict[str, list[str]] = {ami: [] for ami in amis}
    if not amis:
        return found
    for ami, text in _users(cloud, amis, latest):
        if ami in found:
            found[ami].append(text)
    return found


def _users(cloud: Cloud, amis: Mapping[str, str], latest: str) -> Iterator[tuple[str, str]]:
    yield from _instances(cloud, list(amis))
    pinned = {name: ami for ami, name in amis.items() if name}
    for template, image in _launch_templates(cloud):
        # resolve:ssm:NAME, perhaps with :VERSION
        parameter = image.removeprefix("resolve:ssm:").partition(":")[0] if image.startswith("resolve:ssm:") else ""
        yield pinned.get(parameter, image), f"launch template {template}"
    yield from _groups(cloud)
    for name, parameter_row in image_parameters.naming_images(cloud).items():
        if name not in (*pinned, latest):
            yield parameter_row.value, f"SSM parameter {name}"


def _instances(cloud: Cloud, amis: Sequence[str]) -> Iterator[tuple[str, str]]:
    filters: list[FilterTypeDef] = [
        {"Name": "image-id", "Values": list(amis)},
        {"Name": "instance-state-name", "Values": _RUNNING},
    ]
    with aws_errors.translated(f"listing instances in {cloud.place.region}"):
        pages = cloud.ec2.get_paginator("describe_instances").paginate(Filters=filters)
        rows = [instance for page in pages for row in page["Reservations"] for instance in row["Instances"]]
        found = [(row["ImageId"], f"instance {row['InstanceId']}") for row in rows]
    yield from found


def _launch_templates(cloud: Cloud) -> list[tuple[str, str]]:
    """Name with version, and image, of each version of each launch template."""
    with aws_errors.translated(f"listing launch templates in {cloud.place.region}"):
        pages = cloud.ec2.get_paginator("describe_launch_templates").paginate()
        templates = {
            row["LaunchTemplateId"]: row["LaunchTemplateName"] for page in pages for row in page["LaunchTemplates"]
        }
    return [row for identity, name in templates.items() for row in _versions(cloud, identity, name)]


def _versions(cloud: Cloud, identity: str, name: str) -> list[tuple[str, str]]:
    """Those of one launch template; none where it was deleted since it was listed."""
    try:
        with aws_errors.translated(f"listing the versions of launch template {name}"):
            pages = cloud.ec2.get_paginator("describe_launch_template_versions").paginate(LaunchTemplateId=identity)
            rows = [row for page in pages for row in page["LaunchTemplateVersions"]]
            return [
                (f"{name} version {row['VersionNumber']}", row.get("LaunchTemplateData", {}).get("ImageId", ""))
                for row in rows
            ]
    except CloudError as error:
        if not aws_errors.is_not_found(error.code):
            raise
        return []


def _groups(cloud: Cloud) -> list[tuple[str, str]]:
    """Launch configurations, and overrides of Auto Scaling groups; their templates are looked at anyway."""
    client = cloud.client("autoscaling")
    found = []
    with aws_errors.translated(f"listing Auto Scaling groups in {cloud.place.region}"):
        pages = client.get_paginator("describe_auto_scaling_groups").paginate()
        groups: list[Any] = [row for page in pages for row in page["AutoScalingGroups"]]
        pages = client.get_paginator("describe_launch_configurations").paginate()
        configurations = {
            row["LaunchConfigurationName"]: row["ImageId"] for page in pages for row in page["LaunchConfigurations"]
        }
        for name, ami in configurations.items():
            used_by = [row["AutoScalingGroupName"] for row in groups if row.get("LaunchConfigurationName") == name]
            of = f" of Auto Scaling group {', '.join(used_by)}" if used_by else ""
            found.append((ami, f"launch configuration {name}{of}"))
        for group in groups:
            template = group.get("MixedInstancesPolicy", {}).get("LaunchTemplate", {})
            text = f"Auto Scaling group {group['AutoScalingGroupName']}"
            found += [(override.get("ImageId", ""), text) for override in template.get("Overrides", [])]
    return found


def in_use(cloud: Cloud, ami: str) -> list[str]:
    """What uses one AMI, the accounts with which it is shared included. CloudError: AWS does not tell."""
    return [*users(cloud, {ami: ""}, "")[ami], *_shared_with(cloud, ami)]


def _shared_with(cloud: Cloud, ami: str) -> Iterator[str]:
    with aws_errors.translated(f"reading with whom {ami} is shared"):
        answer = cloud.ec2.describe_image_attribute(ImageId=ami, Attribute="launchPermission")
        rows = answer.get("LaunchPermissions", [])
    for row in rows:
        grantee = row.get("UserId") or row.get("OrganizationArn") or row.get("OrganizationalUnitArn")
        yield f"shared with {grantee or 'everybody'}"
