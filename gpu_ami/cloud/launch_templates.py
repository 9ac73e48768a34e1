"""Launch templates of an image: what a proof asks RunInstances for, kept under a name in EC2.

The parameters are those of `launches.request`, without what belongs to one run alone (key pair, user data, tags of the
run, subnet beside an interface). Sources: EC2 API reference, RequestLaunchTemplateData; CloudFormation,
AWS::EC2::LaunchTemplate (same member names), read 2026-11-22.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import aws_errors, capacity, launches
from gpu_ami.cloud.client import Cloud
from gpu_ami.cloud.launches import Launch, request, tag_list
from gpu_ami.errors import UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef

_OF_ONE_LAUNCH = ("MinCount", "MaxCount", "SubnetId")


# Every template has it: callers may change templates with this tag alone (iam/caller-fleet.json).
TAG_IMAGE = "gpu-ami:image"


@dataclass(frozen=True)
class Wish:
    """What a user may add to the launch of a proof. root_volume_gib: 0 for the image's own size.

    node_group: without what a managed node group of EKS sets itself.
    """

    key_name: str = ""
    user_data: str = ""
    placement_group: str = ""
    root_volume_gib: int = 0
    way: str = ""  # capacity.Way; "" for the first of the place
    node_group: bool = False


@dataclass(frozen=True)
class LaunchTemplate:
    """One instance type's. data: RequestLaunchTemplateData. id and version: where it was made; else "" and 0."""

    name: str
    instance_type: str
    data: Mapping[str, Any]
    tags: Mapping[str, str] = field(default_factory=dict)
    id: str = ""
    version: int = 0

    def input(self) -> dict[str, Any]:
        """What CreateLaunchTemplate takes (`aws ec2 create-launch-template --cli-input-json`)."""
        specifications = [{"ResourceType": "launch-template", "Tags": tag_list(self.tags)}]
        document = {"LaunchTemplateName": self.name, "LaunchTemplateData": dict(self.data)}
        return document | ({"TagSpecifications": specifications} if self.tags else {})


def describe(cloud: Cloud, name: str, launch: Launch, wish: Wish) -> LaunchTemplate:
    """The template of a launch in the cloud's place. UsageError: the root volume is too small. CloudError."""
    place = cloud.place
    way = capacity.Way.parse(wish.way) if wish.way else capacity.ways_of(place, launch.instance_type)[0]
    data: dict[str, Any] = dict(request(launch, place, way, place.network.subnets[0], cloud.ec2))
    if data.get("SubnetId"):  # a template has subnets in its interfaces alone
        data["NetworkInterfaces"] = [launches.interface(place)]
    if data.get("NetworkInterfaces"):
        data.pop("SecurityGroupIds", None)
    data |= {"KeyName": wish.key_name, "UserData": base64.b64encode(wish.user_data.encode()).decode()}
    data["Placement"] = {"GroupName": wish.placement_group} if wish.placement_group else {}
    data["BlockDeviceMappings"] = _root_volume(cloud, launch.ami, wish.root_volume_gib)
    if not launch.tags:
        del data["TagSpecifications"]
    if wish.node_group:
        _leave_to_node_group(data)
    kept = {key: value for key, value in data.items() if value and key not in _OF_ONE_LAUNCH}
    tags = {**launch.tags, TAG_IMAGE: name}
    return LaunchTemplate(f"{name}-{launch.instance_type}", launch.instance_type, kept, tags)


def _leave_to_node_group(data: dict[str, Any]) -> None:
    """Takes out what a node group refuses in a template: "can't include SubnetId, IamInstanceProfile,
    RequestSpotInstances, HibernationOptions, or TerminateInstances" (EKS API reference, LaunchTemplateSpecification,
    read 2026-11-27). A Capacity Block stays: the group takes it from the template.
    """
    data.pop("IamInstanceProfile", None)
    data.pop("InstanceInitiatedShutdownBehavior", None)
    if data.get("InstanceMarketOptions", {}).get("MarketType") == "spot":
        del data["InstanceMarketOptions"]
    for interface in data.get("NetworkInterfaces", []):
        interface.pop("SubnetId", None)


def _root_volume(cloud: Cloud, ami: str, gib: int) -> list[dict[str, Any]]:
    """The image's root volume with another size; nothing where the image's own is kept."""
    if not gib:
        return []
    image = cloud.image(ami)
    if image is None:
        raise UsageError(f"{ami} is not in {cloud.place.region}", hint="--where names the place of another region")
    device, own = _root_of(image)
    if gib < own:
        raise UsageError(f"--root-volume-gib: expected at least {own}, the size of {ami}'s snapshot, got {gib}")
    volume = {"VolumeSize": gib, "VolumeType": "gp3", "DeleteOnTermination": True}
    return [{"DeviceName": device, "Ebs": volume}]


def _root_of(image: ImageTypeDef) -> tuple[str, int]:
    """Device and size (GiB) of an image's root volume."""
    device = image.get("RootDeviceName", "")
    mappings = [row for row in image.get("BlockDeviceMappings", []) if row.get("DeviceName") == device]
    return device, mappings[0].get("Ebs", {}).get("VolumeSize", 0) if mappings else 0


def make(cloud: Cloud, template: LaunchTemplate) -> LaunchTemplate:
    """Makes the template in EC2; of a name that is there, a new version that becomes its default. CloudError."""
    with aws_errors.translated(f"making launch template {template.name}"):
        filters: Any = [{"Name": "launch-template-name", "Values": [template.name]}]
        if not cloud.ec2.describe_launch_templates(Filters=filters)["LaunchTemplates"]:
            made = cloud.ec2.create_launch_template(**template.input())["LaunchTemplate"]
            return replace(template, id=made["LaunchTemplateId"], version=made["LatestVersionNumber"])
        document = template.input()
        version = cloud.ec2.create_launch_template_version(
            LaunchTemplateName=template.name, LaunchTemplateData=document["LaunchTemplateData"]
        )["LaunchTemplateVersion"]
        number = version["VersionNumber"]
        cloud.ec2.modify_launch_template(LaunchTemplateName=template.name, DefaultVersion=str(number))
        return replace(template, id=version["LaunchTemplateId"], version=number)


def cloudformation(templates: Sequence[LaunchTemplate]) -> dict[str, Any]:
    """A CloudFormation template with one AWS::EC2::LaunchTemplate for each."""
    resources = {
        resource_name(template): {"Type": "AWS::EC2::LaunchTemplate", "Properties": template.input()}
        for template in templates
    }
    return {"AWSTemplateFormatVersion": "2010-09-09", "Resources": resources}


def resource_name(template: LaunchTemplate) -> str:
    """Logical id in CloudFormation: letters and digits alone."""
    return "LaunchTemplate" + re.sub(r"[^0-9A-Za-z]", "", template.instance_type.title())
