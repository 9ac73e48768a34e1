"""The data of an instance, as its metadata service returns them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime

# Of every instance: the API verifies no signatures, except those of tokens for an EKS cluster.
INSTANCE_SECRET = "the-local-region-takes-any-key"
_TEMPORARY = "ASIA"  # how access keys of roles begin (IAM user guide, "Understanding unique ID prefixes")


def instance_access_key(instance_id: str) -> str:
    """The access key that the metadata service gives an instance for its role; it names the instance."""
    return _TEMPORARY + instance_id.removeprefix("i-").upper()


def instance_of_access_key(key: str) -> str | None:
    """The instance behind an access key; None for any other key."""
    return f"i-{key.removeprefix(_TEMPORARY).lower()}" if key.startswith(_TEMPORARY) else None


@dataclass(frozen=True)
class InstanceView:
    """What the metadata service tells an instance about itself."""

    instance_id: str
    image_id: str
    instance_type: str
    launch_index: int
    reservation_id: str
    account_id: str
    region: str
    zone: str
    architecture: str
    launch_time: datetime
    address: str
    hostname: str
    mac: str
    interface_id: str
    subnet_id: str
    subnet_cidr: str
    vpc_id: str
    vpc_cidr: str
    root_device_name: str
    security_groups: tuple[tuple[str, str], ...]  # (id, name)
    key_name: str | None = None
    public_key: str | None = None
    user_data: bytes | None = None
    profile_arn: str | None = None
    profile_id: str | None = None
    role: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    tokens_required: bool = True
    endpoint_enabled: bool = True
    tags_enabled: bool = False
