"""What uses an AMI in its region: instances, launch templates, Auto Scaling groups, SSM parameters, other accounts.

Whoever removes images asks here first: `sweep`, `publish` with `keep`, a rollback's retirement. Launch templates are
looked at in all their versions, since an Auto Scaling group, or a managed node group of EKS, may name any. What other
accounts do with a shared AMI cannot be seen from here; that it is shared can.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from gpu_ami.cloud import aws_errors, image_parameters
from gpu_ami.cloud.client import Cloud

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
