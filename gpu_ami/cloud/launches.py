"""A launch: what RunInstances is asked for."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, cast

from gpu_ami.cloud import capacity, interfaces

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.literals import InstanceTypeType, ResourceTypeType
    from mypy_boto3_ec2.type_defs import RunInstancesRequestTypeDef, TagSpecificationTypeDef, TagTypeDef

    from gpu_ami.cloud.place import Place

_RESOURCES: tuple[ResourceTypeType, ...] = ("instance", "volume", "network-interface")


def _ignore(_attempt: capacity.Attempt) -> None: ...


@dataclass(frozen=True)
class Launch:
    """Parameters of RunInstances. `tags` go on the instance, its volumes and its interface at creation.

    efa_interfaces: 0: an ordinary interface; else an EFA on each network card of the type that takes one. cancelled:
    ends the wait for capacity. pending_seconds: how long the launch may be pending; EC2 may withdraw its capacity until
    it runs, and the search goes on then; 0: it is not waited for. on_attempt: gets each attempt, the last one included.
    """

    ami: str
    instance_type: str
    key_name: str
    tags: Mapping[str, str]
    user_data: str
    efa_interfaces: int = 0
    cancelled: threading.Event | None = None
    pending_seconds: float = 0.0
    on_attempt: Callable[[capacity.Attempt], object] = _ignore

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled is not None and self.cancelled.is_set()


def tag_list(tags: Mapping[str, str]) -> list[TagTypeDef]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def request(
    launch: Launch, place: Place, way: capacity.Way, subnet_id: str, ec2: EC2Client
) -> RunInstancesRequestTypeDef:
    """The parameters of RunInstances for one attempt. IMDSv2 only; shut down from inside means terminated."""
    place = replace(place, subnet_id=subnet_id or None)
    specifications: list[TagSpecificationTypeDef] = [
        {"ResourceType": kind, "Tags": tag_list(launch.tags)} for kind in _RESOURCES
    ]
    asked: RunInstancesRequestTypeDef = {
        "ImageId": launch.ami,
        "InstanceType": cast("InstanceTypeType", launch.instance_type),
        "MinCount": 1,
        "MaxCount": 1,
        "KeyName": launch.key_name,
        "UserData": launch.user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 2},
        "TagSpecifications": specifications,
    }
    if launch.efa_interfaces:
        asked["NetworkInterfaces"] = interfaces.with_efa(ec2, place, launch.instance_type)
    elif interfaces.need_public_address(place):
        asked["NetworkInterfaces"] = [interfaces.interface(place)]
    else:
        if place.subnet_id:
            asked["SubnetId"] = place.subnet_id
        if place.security_group_ids:
            asked["SecurityGroupIds"] = list(place.security_group_ids)
    if place.instance_profile:
        asked["IamInstanceProfile"] = {"Name": place.instance_profile}
    way.add_to(asked)
    return asked
