"""Layer images of a place: found by the digest in their tags. Private, never published, removed after their expiry."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from gpu_ami.cloud import aws_errors, runs
from gpu_ami.cloud.client import Cloud, tags_of

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef, ImageTypeDef

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
            created = datetime.fromisoformat(self.created.replace("Z", "+00:00"))
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
