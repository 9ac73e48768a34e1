"""Images of one recipe in a place, by their time: which one was there before another."""

from __future__ import annotations

from typing import TYPE_CHECKING

from gpu_ami.cloud import aws_errors
from gpu_ami.cloud.client import Cloud, tags_of
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import FilterTypeDef

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
