"""The image that is published, as its certificate and its region have it, and the tags that say so."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING

from gpu_ami.cloud import Cloud, amis, aws_errors, runs, tags_of
from gpu_ami.errors import UsageError
from gpu_ami.publish.policy import ReleasePolicy

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, ImageTypeDef

TAG_PUBLISHED = "gpu-ami:published"  # when, UTC; without it an image of the recipe is none of the published ones
TAG_VERSION = "gpu-ami:version"
TAG_SOURCE = "gpu-ami:source-ami"  # of a copy
NEVER = "never"
AVAILABLE = "available"
# States that an AMI does not leave by itself (EC2 API reference, Image).
DEAD = ("failed", "error", "invalid", "deregistered", "disabled")


@dataclass(frozen=True)
class Image:
    """An AMI of a region. snapshots: device → id. deprecated_at, published: UTC, "" for none. reason: of a failure."""

    id: str
    name: str
    state: str = AVAILABLE
    tags: Mapping[str, str] = field(default_factory=dict)
    snapshots: Mapping[str, str] = field(default_factory=dict)
    created: str = ""
    deprecated_at: str = ""
    is_protected: bool = False
    imds: str = ""
    source: str = ""
    reason: str = ""

    @property
    def published(self) -> str:
        return self.tags.get(TAG_PUBLISHED, "")

    @property
    def version(self) -> str:
        return self.tags.get(TAG_VERSION, "")

    @staticmethod
    def of(row: ImageTypeDef) -> Image:
        devices = row.get("BlockDeviceMappings", [])
        tags = tags_of(row)
        return Image(
            id=row["ImageId"],
            name=row.get("Name", ""),
            state=row.get("State", AVAILABLE),
            tags=tags,
            snapshots={
                device.get("DeviceName", ""): device["Ebs"]["SnapshotId"]
                for device in devices
                if "SnapshotId" in device.get("Ebs", {})
            },
            created=row.get("CreationDate", ""),
            deprecated_at=row.get("DeprecationTime", ""),
            is_protected=row.get("DeregistrationProtection", "").startswith("enabled"),
            imds=row.get("ImdsSupport", ""),
            source=tags.get(TAG_SOURCE, "") or row.get("SourceImageId", ""),
            reason=row.get("StateReason", {}).get("Message", ""),
        )


@dataclass(frozen=True)
class Release:
    """What is published. tags, snapshot_tags (by device): what the AMI and every copy of it get."""

    image: Image
    region: str
    recipe: str
    tags: Mapping[str, str]
    snapshot_tags: Mapping[str, Mapping[str, str]]
    is_encrypted: bool

    @property
    def version(self) -> str:
        """The AMI's name, in the characters that a parameter's name may have."""
        return re.sub(r"[^A-Za-z0-9_.-]", "_", self.image.name)

    def tags_in(self, region: str) -> dict[str, str]:
        """The tags of the AMI in a region: a copy names its source."""
        return dict(self.tags) | ({} if region == self.region else {TAG_SOURCE: self.image.id})

    def token(self, region: str, key: str, failed: Sequence[str], day: date) -> str:
        """The client token of the copy: one copy a day, also while DescribeImages does not show it yet.

        failed: ids of copies that failed; another one is wanted then.
        """
        text = "\0".join((self.image.id, region, key, *sorted(failed), day.isoformat()))
        return f"gpu-ami-{hashlib.sha256(text.encode()).hexdigest()[:48]}"


def images(cloud: Cloud, name: str, values: Sequence[str]) -> list[Image]:
    """This account's images by a filter, deprecated ones included; each once, whatever the pages repeat."""
    filters: list[FilterTypeDef] = [{"Name": name, "Values": list(values)}]
    with aws_errors.translated(f"listing images in {cloud.place.region}"):
        pages = cloud.ec2.get_paginator("describe_images").paginate(
            Owners=["self"], Filters=filters, IncludeDeprecated=True
        )
        return list({row["ImageId"]: Image.of(row) for page in pages for row in page["Images"]}.values())


def snapshots(cloud: Cloud, image: Image) -> dict[str, tuple[dict[str, str], str]]:
    """Device → tags of its snapshot, and the ARN of the key that it is encrypted with ("" for none)."""
    if not image.snapshots:
        return {}
    with aws_errors.translated(f"describing the snapshots of {image.id}"):
        rows = cloud.ec2.describe_snapshots(SnapshotIds=list(image.snapshots.values()))["Snapshots"]
        found = {
            row["SnapshotId"]: (tags_of(row), row.get("KmsKeyId", "") if row.get("Encrypted") else "") for row in rows
        }
    return {device: found.get(identity, ({}, "")) for device, identity in image.snapshots.items()}


def read_release(cloud: Cloud, ami: str, recipe: str) -> Release:
    """The release of an AMI. UsageError: it is not this account's, or not available. CloudError."""
    found = images(cloud, "image-id", [ami])
    if not found:
        hint = "publish it in the account and region that it was built in (--where)"
        raise UsageError(f"{ami} is no image of this account in {cloud.place.region}", hint=hint)
    (image,) = found
    if image.state != AVAILABLE:
        raise UsageError(f"{ami} is {image.state}, expected {AVAILABLE}")
    if layer := amis.layer_of(image.tags):
        hint = "publish the AMI of its build.json; a layer image is private and expires (docs/layers.md)"
        raise UsageError(f"{ami} is the image of layer {layer}, not a finished image", hint=hint)
    described = snapshots(cloud, image)
    return Release(
        image=image,
        region=cloud.place.region,
        recipe=recipe,
        tags=_kept(image.tags),
        snapshot_tags={device: _kept(tags) for device, (tags, _) in described.items()},
        is_encrypted=any(key for _, key in described.values()),
    )


def _kept(tags: Mapping[str, str]) -> dict[str, str]:
    """The tags that stay and are copied. A published image does not expire: `sweep` would remove it."""
    own = (TAG_PUBLISHED, TAG_VERSION, TAG_SOURCE)
    kept = {key: value for key, value in tags.items() if key not in own and not key.startswith("aws:")}
    return kept | ({runs.TAG_EXPIRES: NEVER} if runs.TAG_EXPIRES in kept else {})


def as_time(text: str) -> datetime | None:
    """A time of AWS or of a tag; UTC where it names no zone, None where it is none."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        return None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


# EC2 rounds to the minute and refuses a time in the past.
SOON = timedelta(minutes=2)


def surplus(older: Sequence[Image], policy: ReleasePolicy) -> Sequence[Image]:
    """The older images that are not among the `keep` newest, of which the one that is published is the first."""
    return older[policy.keep - 1 :] if policy.keep else ()


def due(older: Sequence[Image], policy: ReleasePolicy, now: datetime) -> list[Image]:
    """Those of them that have been deprecated for retire_after days."""
    wait = timedelta(days=policy.retire_after)
    return [one for one in surplus(older, policy) if (since := as_time(one.deprecated_at)) and since + wait <= now]


def deprecation(image: Image, policy: ReleasePolicy, now: datetime) -> datetime | None:
    """When an image is deprecated by its own age; None without deprecate_after."""
    if not policy.deprecate_after:
        return None
    published = as_time(image.published) or now
    return max(published + timedelta(days=policy.deprecate_after), now + SOON)


def is_about(text: str, moment: datetime) -> bool:
    """Whether EC2 has this time, which it rounds to the minute."""
    at = as_time(text)
    return at is not None and abs(at - moment) <= SOON


def to_deprecate(older: Sequence[Image], policy: ReleasePolicy, now: datetime) -> list[tuple[Image, datetime]]:
    """The older images whose deprecation is missing or too late, with its time: the surplus at once."""
    rows = []
    beyond = {one.id for one in surplus(older, policy)}
    for one in older:
        at, goal = as_time(one.deprecated_at), deprecation(one, policy, now)
        if one.id in beyond and (at is None or at > now + SOON):
            rows.append((one, now + SOON))
        elif one.id not in beyond and goal is not None and at is None:
            rows.append((one, goal))
    return rows
