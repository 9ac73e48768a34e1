"""What a region has of a release: its AMI or copy, who it is shared with, parameters, keys, older images and users."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from gpu_ami.cloud import Cloud, Place, amis, aws_errors, image_parameters, runs
from gpu_ami.errors import CloudError
from gpu_ami.publish import sharing
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.release import DEAD, Image, Release, due, images, snapshots
from gpu_ami.publish.sharing import Key

if TYPE_CHECKING:
    pass


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
    parameters: Mapping[str, image_parameters.Parameter] = field(default_factory=dict)
    key: Key | None = None
    older: tuple[Image, ...] = ()
    users: Mapping[str, Sequence[str]] = field(default_factory=dict)


def cloud_of(place: Place, region: str) -> Cloud:
    """The same account and endpoint, in a region."""
    return Cloud(place.in_region(region))


def observe(cloud: Cloud, release: Release, policy: ReleasePolicy, where: RegionPolicy, now: datetime) -> View:
    """What the region has. CloudError: a call failed, or what is there contradicts the release or the policy."""
    region = where.region
    image, failed = _own(cloud, release)
    key = sharing.read_key(cloud, where.kms_key) if where.kms_key else None
    described = snapshots(cloud, image) if image else {}
    encrypted_with = sorted({arn for _, arn in described.values() if arn})
    _compare_key(image, encrypted_with, key, region)
    in_place = [sharing.read_key(cloud, arn) for arn in encrypted_with] if policy.is_shared else []
    _check_sharing(policy, release, region, in_place, key, image=image)
    shared = _shared(cloud, image) if image else frozenset()
    if policy.public and sharing.PUBLIC not in shared and (blocked := sharing.public_access(cloud)):
        raise CloudError(blocked, hint=sharing.NOT_PUBLIC)
    names = [name for name in (policy.latest, policy.pinned(release.version)) if name]
    older = _older(cloud, release, image)
    retired = due(older, policy, now)
    pinned = {one.id: policy.pinned(one.version) if one.version else "" for one in retired}
    return View(
        region=region,
        image=image,
        failed=tuple(failed),
        snapshot_tags={device: tags for device, (tags, _) in described.items()},
        shared=shared,
        parameters=image_parameters.read(cloud, names) if names else {},
        key=key,
        older=older,
        users=amis.users(cloud, pinned, policy.latest),
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
    policy: ReleasePolicy,
    release: Release,
    region: str,
    in_place: Sequence[Key],
    key: Key | None,
    *,
    image: Image | None,
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
