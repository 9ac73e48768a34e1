"""What EC2 refuses of a launch, and moto accepts: foreign groups, profiles without a role, full subnets, reservations.

Codes: EC2 API reference, "Error codes", read 2026-11-28. Messages say the same as EC2's; their wording is not compared.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from localregion.backends import fraction_of

if TYPE_CHECKING:
    from localregion.backends import Ec2

Answer = tuple[str, str]  # code and message
_GROUP = re.compile(r"(?:NetworkInterface\.\d+\.)?SecurityGroupId\.\d+")


def refusals(parameters: Mapping[str, str], ec2: Ec2) -> Iterator[Answer]:
    """All that EC2 refuses of a RunInstances call. parameters: flat, as in the query protocol."""
    subnet_id = next((value for key, value in parameters.items() if key.endswith("SubnetId") and value), ec2.subnet_id)
    subnet = next((row[subnet_id] for row in ec2.backend.subnets.values() if subnet_id in row), None)
    if subnet is None:
        yield "InvalidSubnetID.NotFound", f"The subnet ID '{subnet_id}' does not exist"
        return
    if int(subnet.available_ip_address_count) < 1:
        text = (
            f"There are not enough free addresses in subnet '{subnet_id}' to satisfy the requested number of instances."
        )
        yield "InsufficientFreeAddressesInSubnet", text
    for group_id in [value for key, value in parameters.items() if _GROUP.fullmatch(key)]:
        of_other = [vpc for vpc, groups in ec2.backend.groups.items() if group_id in groups and vpc != subnet.vpc_id]
        if of_other:
            text = f"Security group {group_id} and subnet {subnet_id} belong to different networks."
            yield "InvalidParameter", text
    yield from _profile(parameters.get("IamInstanceProfile.Name", ""), ec2)
    yield from _fraction(parameters.get("InstanceType", ""))
    yield from reservation(
        parameters, "CapacityReservationSpecification.CapacityReservationTarget.CapacityReservationId"
    )


def _fraction(instance_type: str) -> Iterator[Answer]:
    """The region has no vGPU: its boards are whole GPUs, which would show what a fraction does not have."""
    if board := fraction_of(instance_type):
        text = (
            f"Your requested instance type ({instance_type}) is not supported in your requested Availability Zone: the "
            f"local region has no fraction of a GPU ({board}). Prove this type on AWS."
        )
        yield "Unsupported", text


def _profile(name: str, ec2: Ec2) -> Iterator[Answer]:
    if not name:
        return
    profile = ec2.instance_profile(name)
    prefix = f"Value ({name}) for parameter iamInstanceProfile.name is invalid."
    if profile is None:
        yield "InvalidParameterValue", f"{prefix} Invalid IAM Instance Profile name"
    elif not profile.roles:
        yield "InvalidParameterValue", f'{prefix} IAM Instance Profile "{profile.arn}" has no associated IAM Roles'


def reservation(parameters: Mapping[str, str], prefix: str) -> Iterator[Answer]:
    """The region has no Capacity Reservations: what a call says that names one."""
    for key, value in parameters.items():
        if key.startswith(prefix) and value:
            yield "InvalidCapacityReservationId.NotFound", f"The capacity reservation '{value}' does not exist"
