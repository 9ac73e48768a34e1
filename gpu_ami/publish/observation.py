"""What a region has of a release: its AMI or copy, who it is shared with, parameters, keys, older images and users.

What uses an AMI in its region: instances, launch templates, Auto Scaling groups, SSM parameters.

Launch templates are looked at in all their versions, since an Auto Scaling group may name any. What other accounts do
with a shared AMI cannot be seen from here.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import Cloud, Place, aws_errors, runs
from gpu_ami.errors import CloudError
from gpu_ami.publish import parameters, sharing
from gpu_ami.publish.parameters import Parameter
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.release import DEAD, Image, Release, due, images, snapshots
from gpu_ami.publish.sharing import Key

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef


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
    for name, parameter_row in parameters.naming_images(cloud).items():
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
    found = []
    with aws_errors.translated(f"listing launch templates in {cloud.place.region}"):
        pages = cloud.ec2.get_paginator("describe_launch_templates").paginate()
        templates = [row for page in pages for row in page["LaunchTemplates"]]
        for template in templates:
            versions = cloud.ec2.get_paginator("describe_launch_template_versions").paginate(
                LaunchTemplateId=template["LaunchTemplateId"]
            )
            for row in (row for page in versions for row in page["LaunchTemplateVersions"]):
                name = f"{template['LaunchTemplateName']} version {row['VersionNumber']}"
                found.append((name, row.get("LaunchTemplateData", {}).get("ImageId", "")))
    return found


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


@dataclass(frozen=True)
class View:
    """A region as it is. image: the AMI or its copy, None: not there. failed: copies that failed. shared: grantees.

    key: of the policy's kms_key. snapshot_tags: by device. older: published images of the recipe, the newest first.
    users: AMI → what uses it, of the older images that are due.
    """

    region: str
    image: Image | None = None
    failed: tuple[Image, ...] = ()
    snapshot_tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()
    parameters: Mapping[str, Parameter] = field(default_factory=dict)
    key: Key | None = None
    older: tuple[Image, ...] = ()
    users: Mapping[str, Sequence[str]] = field(default_factory=dict)


def cloud_of(place: Place, region: str) -> Cloud:
    """The same account and endpoint, in a region."""
    return Cloud(replace(place, region=region, subnet_id=None, subnet_ids=()))


def observe(cloud: Cloud, release: Release, policy: ReleasePolicy, where: RegionPolicy, now: datetime) -> View:
    """What the region has. CloudError: a call failed, or what is there contradicts the release or the policy."""
    region = where.region
    image, failed = _own(cloud, release)
    key = sharing.read_key(cloud, where.kms_key) if where.kms_key else None
    described = snapshots(cloud, image) if image else {}
    encrypted_with = sorted({arn for _, arn in described.values() if arn})
    _compare_key(image, encrypted_with, key, region)
    in_place = [sharing.read_key(cloud, arn) for arn in encrypted_with] if policy.is_shared else []
    _check_sharing(policy, release, region, in_place, key, image)
    names = [name for name in (policy.latest, policy.pinned(release.version)) if name]
    older = _older(cloud, release, image)
    retired = due(older, policy, now)
    pinned = {one.id: policy.pinned(one.version) if one.version else "" for one in retired}
    return View(
        region=region,
        image=image,
        failed=tuple(failed),
        snapshot_tags={device: tags for device, (tags, _) in described.items()},
        shared=_shared(cloud, image) if image else frozenset(),
        parameters=parameters.read(cloud, names) if names else {},
        key=key,
        older=older,
        users=users(cloud, pinned, policy.latest),
    )


def _own(cloud: Cloud, release: Release) -> tuple[Image | None, list[Image]]:
    """The release's image in the region, and copies that failed. CloudError: another image has its name."""
    named = images(cloud, "name", [release.image.name])
    is_home = cloud.place.region == release.region
    own = [one for one in named if (one.id == release.image.id if is_home else one.source == release.image.id)]
    others = [one for one in named if one not in own]
    alive = [one for one in own if one.state not in DEAD]
    if others or len(alive) > 1:
        ids = ", ".join(one.id for one in (*alive, *others))
        text = f"{cloud.place.region} has more than one image named {release.image.name}: {ids}"
        hint = f"deregister or rename what is no copy of {release.image.id}, or the second copy"
        raise CloudError(text, hint=hint)
    return (alive[0] if alive else None), [one for one in own if one.state in DEAD]


def _compare_key(image: Image | None, encrypted_with: Sequence[str], key: Key | None, region: str) -> None:
    if key is not None and not key.is_enabled:
        raise CloudError(f"{region}: {key.arn} is disabled", hint="enable it, or name another kms_key")
    if image is None or key is None or list(encrypted_with) == [key.arn]:
        return
    text = f"{region}: {image.id} is encrypted with {', '.join(encrypted_with) or 'no key'}, the policy names {key.arn}"
    hint = "of a copy: deregister it, and it is made again; of the image itself: build it with this kms_key_id"
    raise CloudError(text, hint=hint)


def _check_sharing(
    policy: ReleasePolicy, release: Release, region: str, in_place: Sequence[Key], key: Key | None, image: Image | None
) -> None:
    """CloudError: the image, or the copy that would be made, cannot be shared as the policy says."""
    keys = in_place if image else [key] if key else []
    refused = list(sharing.refusals(policy, region, keys))
    if image is None and key is None and release.is_encrypted and policy.is_shared:
        refused.append(
            f"{region}: a copy of an encrypted AMI gets the key aws/ebs, which cannot be shared: set kms_key"
        )
    if refused:
        raise CloudError(f"{region}: the image cannot be shared as the policy says", details=refused)


def _shared(cloud: Cloud, image: Image) -> frozenset[str]:
    with aws_errors.translated(f"reading the launch permissions of {image.id}"):
        rows = cloud.ec2.describe_image_attribute(ImageId=image.id, Attribute="launchPermission")["LaunchPermissions"]
        return frozenset(sharing.grantee_of({key: str(value) for key, value in row.items()}) for row in rows)


def _older(cloud: Cloud, release: Release, image: Image | None) -> tuple[Image, ...]:
    """The recipe's other images that were published here, the newest first."""
    found = images(cloud, f"tag:{runs.TAG_RECIPE}", [release.recipe])
    published = [one for one in found if one.published and one.id != (image.id if image else "")]
    return tuple(sorted(published, key=lambda one: (one.published, one.id), reverse=True))
