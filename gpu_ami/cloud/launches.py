"""A launch: what RunInstances is asked for, with its network interfaces (one ordinary interface, or EFA interfaces).

An instance is ended from outside at its expiry, even if its guest and the driver of its run are dead: a one-time
schedule of EventBridge Scheduler calls TerminateInstances in a role of the account (`dead_man_role` of the --where
file; without one there is no schedule). The schedule deletes itself when it has run; a run that ends the instance
itself deletes it. Source: https://docs.aws.amazon.com/scheduler/latest/UserGuide/managing-targets-universal.html and
schedule-types.html, read 2026-11-22.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, cast

from gpu_ami.cloud import aws_errors, capacity
from validator.aws import first

if TYPE_CHECKING:
    from collections.abc import Sequence

    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.literals import InstanceTypeType, ResourceTypeType
    from mypy_boto3_ec2.type_defs import (
        BlockDeviceMappingTypeDef,
        EbsBlockDeviceTypeDef,
        InstanceNetworkInterfaceSpecificationTypeDef,
        RunInstancesRequestTypeDef,
        TagSpecificationTypeDef,
        TagTypeDef,
    )

    from gpu_ami.cloud.place import Place
    from gpu_ami.errors import GpuAmiError


def need_public_address(place: Place) -> bool:
    """Whether to ask for a public address, as the Packer template does: not every subnet gives one by itself."""
    return place.login.ssh_interface.startswith("public") and bool(place.network.subnet_id)


def interface(
    place: Place, card: int = 0, device: int = 0, kind: str = "interface"
) -> InstanceNetworkInterfaceSpecificationTypeDef:
    """One network interface on a network card; the first one with a public address where the login needs it."""
    request: InstanceNetworkInterfaceSpecificationTypeDef = {
        "DeviceIndex": device,
        "NetworkCardIndex": card,
        "DeleteOnTermination": True,
    }
    if kind != "interface":
        request["InterfaceType"] = kind
    if place.network.subnet_id:
        request["SubnetId"] = place.network.subnet_id
    if place.network.security_group_ids:
        request["Groups"] = list(place.network.security_group_ids)
    if card == 0 and need_public_address(place):
        request["AssociatePublicIpAddress"] = True
    return request


def with_efa(ec2: EC2Client, place: Place, instance_type: str) -> list[InstanceNetworkInterfaceSpecificationTypeDef]:
    """The instance's own interface on card 0, and an EFA on each network card that takes one.

    The cards are EC2's own (InterfaceTypes): on p6-b300, card 0 takes none.
    Further cards carry EFA-only interfaces, which need no address; those with room for one interface alone have it
    at device 0. EC2 gives a public address only to an instance with a single interface: where the login uses that,
    it has one. Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html, and for device
    indexes https://github.com/aws/aws-parallelcluster/pull/6930, read 2026-11-22.
    """
    with aws_errors.translated(f"looking up the network cards of {instance_type}"):
        names = cast("Sequence[InstanceTypeType]", [instance_type])
        types = ec2.describe_instance_types(InstanceTypes=names)["InstanceTypes"]
        network = first(types, "InstanceTypes")["NetworkInfo"]
    cards = [card for card in network.get("NetworkCards", []) if _takes_efa(card)]
    own = any(card["NetworkCardIndex"] == 0 for card in cards)
    requested = [interface(place, 0, 0, "efa" if own else "interface")]
    if place.login.ssh_interface.startswith("public"):
        return requested
    return requested + [
        interface(place, card["NetworkCardIndex"], int(card["MaximumNetworkInterfaces"] > 1), "efa-only")
        for card in cards
        if card["NetworkCardIndex"] > 0
    ]


def _takes_efa(card: Mapping[str, Any]) -> bool:
    """Whether a network card takes an EFA-only interface; an older API, which does not say, has no other cards."""
    return "efa-only" in card.get("InterfaceTypes", ["efa-only"])


_RESOURCES: tuple[ResourceTypeType, ...] = ("instance", "volume", "network-interface")


def _ignore(_: object) -> None: ...


@dataclass(frozen=True)
class RootVolume:
    """The root volume of a builder: gp3, encrypted. kms_key_id: "" for the account's default key for EBS."""

    device_name: str
    gib: int
    kms_key_id: str = ""

    def mapping(self) -> BlockDeviceMappingTypeDef:
        volume: EbsBlockDeviceTypeDef = {
            "VolumeType": "gp3", "VolumeSize": self.gib, "Encrypted": True, "DeleteOnTermination": True,
        }  # fmt: skip
        if self.kms_key_id:
            volume["KmsKeyId"] = self.kms_key_id
        return {"DeviceName": self.device_name, "Ebs": volume}


@dataclass(frozen=True)
class Launch:
    """Parameters of RunInstances. `tags` go on the instance, its volumes and its interface at creation.

    efa_interfaces: 0: an ordinary interface; else an EFA on each network card of the type that takes one. cancelled:
    ends the wait for capacity. pending_seconds: how long the launch may be pending; EC2 may withdraw its capacity until
    it runs, and the search goes on then; 0: it is not waited for. on_attempt: gets each attempt, the last one included.
    count: machines of this one call, all of them or none. placement_group: of all of them; "" for none. root_volume:
    None for the AMI's own. on_leftover: gets the error where instances of a failed attempt could not be terminated.
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
    count: int = 1
    placement_group: str = ""
    root_volume: RootVolume | None = None
    on_leftover: Callable[[GpuAmiError], object] = _ignore

    @property
    def is_cancelled(self) -> bool:
        return self.cancelled is not None and self.cancelled.is_set()


def tag_list(tags: Mapping[str, str]) -> list[TagTypeDef]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def request(
    launch: Launch, place: Place, way: capacity.Way, subnet_id: str, ec2: EC2Client
) -> RunInstancesRequestTypeDef:
    """The parameters of RunInstances for one attempt. IMDSv2 only; shut down from inside means terminated."""
    place = replace(place, network=replace(place.network, subnet_ids=(subnet_id,) if subnet_id else ()))
    specifications: list[TagSpecificationTypeDef] = [
        {"ResourceType": kind, "Tags": tag_list(launch.tags)} for kind in _RESOURCES
    ]
    asked: RunInstancesRequestTypeDef = {
        "ImageId": launch.ami,
        "InstanceType": cast("InstanceTypeType", launch.instance_type),
        "MinCount": launch.count,
        "MaxCount": launch.count,
        "KeyName": launch.key_name,
        "UserData": launch.user_data,
        "InstanceInitiatedShutdownBehavior": "terminate",
        "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 2},
        "TagSpecifications": specifications,
    }
    if launch.efa_interfaces:
        asked["NetworkInterfaces"] = with_efa(ec2, place, launch.instance_type)
    elif need_public_address(place):
        asked["NetworkInterfaces"] = [interface(place)]
    else:
        if place.network.subnet_id:
            asked["SubnetId"] = place.network.subnet_id
        if place.network.security_group_ids:
            asked["SecurityGroupIds"] = list(place.network.security_group_ids)
    if launch.root_volume:
        asked["BlockDeviceMappings"] = [launch.root_volume.mapping()]
    if place.instance_profile:
        asked["IamInstanceProfile"] = {"Name": place.instance_profile}
    # A Capacity Block is in one UltraCluster already, and takes no placement group of its caller's (ParallelCluster's
    # changelog, 3.11.0: EfaPlacementGroupValidator does not suggest one there; read 2026-11-25).
    if launch.placement_group and way.kind != capacity.CAPACITY_BLOCK:
        asked["Placement"] = {"GroupName": launch.placement_group}
    way.add_to(asked)
    return asked


RUN_ATTRIBUTE = "gpu-ami.run"  # of a node of ours, in its cluster: the run's id


@dataclass(frozen=True)
class Cluster:
    """service: as reports name it. own: made for this run, and removed with it. version: of the service, "" for none.

    node: what user data needs beside the name, such as the endpoint and certificate authority of a Kubernetes cluster.
    """

    service: str
    name: str
    run: str
    own: bool = False
    version: str = ""
    node: Mapping[str, str] | None = None


def schedule_name(instance_id: str) -> str:
    return f"gpu-ami-{instance_id}"


def arm_dead_man(scheduler: Any, role: str, instance_id: str, expires: str) -> None:
    """Makes the schedule. role: its ARN; expires: RFC 3339, UTC. CloudError: it cannot be made."""
    partition = role.split(":")[1]
    target = {
        "Arn": f"arn:{partition}:scheduler:::aws-sdk:ec2:terminateInstances",
        "RoleArn": role,
        "Input": json.dumps({"InstanceIds": [instance_id]}),
    }
    with aws_errors.translated(f"scheduling the end of {instance_id} (dead_man_role {role})"):
        scheduler.create_schedule(
            Name=schedule_name(instance_id),
            Description="gpu-ami: terminates an instance whose run has died",
            ScheduleExpression=f"at({expires.removesuffix('Z')})",
            ScheduleExpressionTimezone="UTC",
            FlexibleTimeWindow={"Mode": "OFF"},
            ActionAfterCompletion="DELETE",
            Target=target,
        )


def disarm_dead_man(scheduler: Any, instance_id: str) -> bool:
    """Deletes the schedule; False where there is none, as after it has run. CloudError: it cannot be deleted."""
    with aws_errors.translated(f"deleting the schedule of {instance_id}"):
        try:
            scheduler.delete_schedule(Name=schedule_name(instance_id))
        except scheduler.exceptions.ResourceNotFoundException:
            return False
    return True
