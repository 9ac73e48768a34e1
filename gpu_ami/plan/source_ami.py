"""Looks up the source AMI of a plan in the cloud."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypedDict

from gpu_ami.cloud import aws_errors
from gpu_ami.errors import UsageError
from validator.plan_document import Builder, SourceAmi

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef

    from gpu_ami.cloud import Cloud


class SourcePlan(TypedDict):
    """The sections of a plan that decide its source AMI."""

    source_ami: SourceAmi
    architecture: str
    build: Builder


def resolve_source_ami(cloud: Cloud, plan: SourcePlan) -> dict[str, str]:
    """The AMI that a plan's `source_ami` resolves to in the region now: id, name, created, through, root_device.

    An SSM public parameter is asked where there is one, else the newest of the owner's with the name, deprecated ones
    too: public AMIs of an ended release are deprecated, and hidden from a plain search (EC2, "Deprecate an AMI").
    UsageError: none, or its root volume is larger than the plan's.
    """
    source = plan["source_ami"]
    if "id" in source:
        ami, through = source["id"], "id"
    elif "ssm" in source:
        ami, through = _parameter(cloud, source["ssm"]), f"ssm:{source['ssm']}"
    else:
        ami, through = _newest(cloud, plan), f"{source['owner']}:{source['name']}"
    image = cloud.image(ami)
    if image is None:
        raise UsageError(f"source AMI {ami} ({through}) is not in {cloud.place.region}")
    root_device = image.get("RootDeviceName", "")
    _require_room(image, root_device, plan)
    return {
        "id": ami,
        "name": image.get("Name", ""),
        "created": image.get("CreationDate", ""),
        "through": through,
        "root_device": root_device,
    }


def _require_room(image: ImageTypeDef, root_device: str, plan: SourcePlan) -> None:
    """EC2 refuses a root volume smaller than the AMI's snapshot (InvalidBlockDeviceMapping)."""
    devices = image.get("BlockDeviceMappings", [])
    sizes = {device.get("DeviceName"): device.get("Ebs", {}).get("VolumeSize", 0) for device in devices}
    needed, planned = sizes.get(root_device, 0), plan["build"]["root_volume_gib"]
    if needed > planned:
        raise UsageError(
            f"build.root_volume_gib: expected at least {needed} (source AMI {image.get('ImageId')}), got {planned}",
            hint=f"set build.root_volume_gib to {needed} or more in the recipe",
        )


def _parameter(cloud: Cloud, name: str) -> str:
    ssm = cloud.client("ssm")
    with aws_errors.translated(f"looking up the source AMI (SSM parameter {name})"):
        try:
            return str(ssm.get_parameter(Name=name)["Parameter"]["Value"])
        except ssm.exceptions.ParameterNotFound as error:
            hint = "set source_ami in the --where file, or owner and name in the recipe"
            raise UsageError(f"no SSM parameter {name} in {cloud.place.region}", hint=hint) from error


def _newest(cloud: Cloud, plan: SourcePlan) -> str:
    source = plan["source_ami"]
    with aws_errors.translated(f"looking up the source AMI ({source['owner']}:{source['name']})"):
        images = cloud.ec2.describe_images(
            Owners=[source["owner"]],
            IncludeDeprecated=True,
            Filters=[
                {"Name": "name", "Values": [source["name"]]},
                {"Name": "architecture", "Values": [plan["architecture"]]},
                {"Name": "state", "Values": ["available"]},
            ],
        )["Images"]
    if not images:
        raise UsageError(
            f"no AMI of {source['owner']} named {source['name']} ({plan['architecture']}) in {cloud.place.region}",
            hint="set source_ami in the --where file",
        )
    return str(max(images, key=lambda image: image.get("CreationDate", ""))["ImageId"])
