"""What EC2 Spot needs in an account: its service-linked role, and that role's right to use the key of a volume.

Source: EC2 user guide, "Service-linked role for EC2 Spot Instances" and "Grant access to customer managed keys for use
with encrypted AMIs and EBS snapshots", read 2026-11-28.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from gpu_ami.cloud import capacity
from gpu_ami.cloud.preflight import identity
from gpu_ami.cloud.preflight.findings import Finding, Scope, error, ok, warning
from gpu_ami.cloud.preflight.resources import AWS_EBS, volume_key

if TYPE_CHECKING:
    from mypy_boto3_iam import IAMClient
    from mypy_boto3_kms import KMSClient

_SUBJECT, _ROLE, _SERVICE = "spot", "AWSServiceRoleForEC2Spot", "spot.amazonaws.com"
_MAKE = f"aws iam create-service-linked-role --aws-service-name {_SERVICE}"


def spot(scope: Scope) -> Iterator[Finding]:
    """The service-linked role is there, or the caller may create it; the role may use the key of the volumes.

    Where a type has another way beside Spot, what is missing is a warning: the launch goes on with that way.
    """
    ways = {name: [way.kind for way in capacity.ways_of(scope.place, name)] for name in _types(scope)}
    bought = [kinds for kinds in ways.values() if capacity.SPOT in kinds]
    if not bought:
        return
    make = warning if all(len(kinds) > 1 for kinds in bought) else error
    iam: IAMClient = scope.cloud.client("iam")
    try:
        role = iam.get_role(RoleName=_ROLE)["Role"]["Arn"]
    except iam.exceptions.NoSuchEntityException:
        role = identity.service_role_arn(scope, _SERVICE, _ROLE)
        if not identity.may_create_service_role(scope, _SERVICE, role):
            found = f"the account has no {_ROLE}, and the caller may not create it"
            yield make(
                _SUBJECT, found, "the service-linked role of EC2 Spot", f"{_MAKE}, or attach iam/caller-spot.json"
            )
            return
        yield ok(_SUBJECT, f"the first Spot Instance creates {_ROLE}")
        return
    name = volume_key(scope.cloud)
    if name == AWS_EBS:
        yield ok(_SUBJECT, f"{_ROLE} is there")
        return
    kms: KMSClient = scope.cloud.client("kms")
    pages = kms.get_paginator("list_grants").paginate(KeyId=name, GranteePrincipal=role)
    if any(page["Grants"] for page in pages):
        yield ok(_SUBJECT, f"{_ROLE} is there, and has a grant for {name}")
        return
    found = f"no grant lets {_ROLE} use {name}; unless the key's policy does, Spot Instances end at once"
    remedy = f"aws kms create-grant --key-id {name} --grantee-principal {role} --operations Decrypt Encrypt"
    more = "GenerateDataKey GenerateDataKeyWithoutPlaintext CreateGrant DescribeKey ReEncryptFrom ReEncryptTo"
    yield warning(_SUBJECT, found, "a grant", f"{remedy} {more}")


def _types(scope: Scope) -> list[str]:
    """The plan's types; of a place alone, one for each of its patterns."""
    return scope.instance_types or list(scope.place.capacity.ways)
