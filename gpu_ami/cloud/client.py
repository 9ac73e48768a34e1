"""Calls to EC2: launch, watch and terminate instances, read images, list leftovers.

Everything is tagged by the call that creates it. The same code runs against AWS and against the local region: a place
differs in its endpoint, never in a branch here.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpu_ami.cloud import aws_errors, dead_man, runs
from gpu_ami.errors import CapacityError, CloudError, GpuAmiError, UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.literals import InstanceTypeType, ResourceTypeType
    from mypy_boto3_ec2.type_defs import (
        FilterTypeDef,
        ImageTypeDef,
        InstanceNetworkInterfaceSpecificationTypeDef,
        InstanceTypeDef,
        RunInstancesRequestTypeDef,
        TagSpecificationTypeDef,
        TagTypeDef,
    )

    from gpu_ami.cloud.place import Place

# What was just created may be unknown to the next call for a while (EC2 API reference, "Eventual consistency").
_CONSISTENT_SECONDS = 120.0
_POLL_SECONDS = 1.0
_RESOURCES: tuple[ResourceTypeType, ...] = ("instance", "volume", "network-interface")


@dataclass(frozen=True)
class Launch:
    """Parameters of RunInstances. `tags` go on the instance, its volumes and its interface at creation.

    efa_interfaces: 0: an ordinary interface; else an EFA on each network card of the type that takes one.
    """

    ami: str
    instance_type: str
    key_name: str
    tags: Mapping[str, str]
    user_data: str
    efa_interfaces: int = 0


_Answer = TypeVar("_Answer")
_translated = aws_errors.translated


def _tag_list(tags: Mapping[str, str]) -> list[TagTypeDef]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def tags_of(resource: Mapping[str, object]) -> dict[str, str]:
    """Tags of any resource that an AWS API describes."""
    tags = resource.get("Tags")
    return {tag["Key"]: tag["Value"] for tag in tags} if isinstance(tags, list) else {}


def _takes_efa(card: Mapping[str, Any]) -> bool:
    """Whether a network card takes an EFA-only interface; an older API, which does not say, has no other cards."""
    return "efa-only" in card.get("InterfaceTypes", ["efa-only"])


class Cloud:
    """EC2 in one place. Errors: CloudError, CapacityError, UsageError (credentials)."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._ec2: EC2Client | None = None
        self._created: dict[str, float] = {}  # id → when this object created it

    @property
    def ec2(self) -> EC2Client:
        if self._ec2 is None:
            with _translated("opening a session"):
                self._ec2 = cast("EC2Client", self.client("ec2"))
        return self._ec2

    def session(self) -> Any:
        """A boto3 session of this place's region and credentials."""
        import boto3

        keys = self.place.credentials
        return boto3.Session(
            profile_name=self.place.profile or None,
            region_name=self.place.region,
            aws_access_key_id=keys.access_key_id if keys else None,
            aws_secret_access_key=keys.secret_access_key if keys else None,
            aws_session_token=(keys.session_token or None) if keys else None,
        )

    def client(self, service: str) -> Any:
        """A boto3 client of this place's region, endpoint and credentials."""
        from botocore.config import Config

        # Transport errors and throttling are retried here and nowhere else.
        config = Config(retries={"mode": "standard", "total_max_attempts": 6}, connect_timeout=10, read_timeout=60)
        return self.session().client(service, endpoint_url=self.place.endpoint or None, config=config)

    def import_key(self, name: str, public_key: str, tags: Mapping[str, str]) -> None:
        with _translated(f"importing key pair {name}"):
            self.ec2.import_key_pair(
                KeyName=name,
                PublicKeyMaterial=public_key.encode(),
                TagSpecifications=[{"ResourceType": "key-pair", "Tags": _tag_list(tags)}],
            )

    def delete_key(self, name: str) -> None:
        with _translated(f"deleting key pair {name}"):
            self.ec2.delete_key_pair(KeyName=name)

    def launch(self, launch: Launch) -> str:
        """Starts one instance and returns its id. IMDSv2 only; shut down from inside means terminated."""
        place = self.place
        specifications: list[TagSpecificationTypeDef] = [
            {"ResourceType": kind, "Tags": _tag_list(launch.tags)} for kind in _RESOURCES
        ]
        request: RunInstancesRequestTypeDef = {
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
            request["NetworkInterfaces"] = self._efa_interfaces(launch.instance_type)
        elif self._needs_public_address:
            request["NetworkInterfaces"] = [self._interface(0)]
        else:
            if place.subnet_id:
                request["SubnetId"] = place.subnet_id
            if place.security_group_ids:
                request["SecurityGroupIds"] = list(place.security_group_ids)
        if place.instance_profile:
            request["IamInstanceProfile"] = {"Name": place.instance_profile}
        with _translated(f"launching {launch.instance_type} from {launch.ami}"):
            instance_id = self.ec2.run_instances(**request)["Instances"][0]["InstanceId"]
        self.created(instance_id)
        try:
            self.end_at(instance_id, launch.tags.get(runs.TAG_EXPIRES, ""))
        except GpuAmiError:
            self.terminate([instance_id])
            raise
        return instance_id

    def end_at(self, instance_id: str, expires: str) -> None:
        """Has AWS terminate the instance then, where the place has a role for it. expires: RFC 3339, UTC."""
        role = self.place.dead_man_role
        if role and expires:
            dead_man.arm(self.client("scheduler"), role, instance_id, expires)

    def forget_end(self, instance_id: str) -> None:
        """Takes that back for an instance that has been terminated."""
        if self.place.dead_man_role:
            dead_man.disarm(self.client("scheduler"), instance_id)

    def created(self, resource_id: str) -> None:
        """Remembers that a resource is new, so that "not found" is asked again for a while."""
        self._created[resource_id] = time.monotonic()

    def _consistent(self, resource_ids: Sequence[str], call: Callable[[], _Answer]) -> _Answer:
        """The call's answer; asked again each second where AWS does not know yet what was just created."""
        while True:
            try:
                return call()
            except GpuAmiError as error:
                newest = max((self._created.get(resource_id, 0.0) for resource_id in resource_ids), default=0.0)
                is_new = newest and time.monotonic() - newest < _CONSISTENT_SECONDS
                if not (is_new and aws_errors.is_not_found(error.code)):
                    raise
            time.sleep(_POLL_SECONDS)

    @property
    def _needs_public_address(self) -> bool:
        """Whether to ask for a public address, as the Packer template does: not every subnet gives one by itself."""
        return self.place.ssh_interface.startswith("public") and bool(self.place.subnet_id)

    def _interface(
        self, card: int, device: int = 0, kind: str = "interface"
    ) -> InstanceNetworkInterfaceSpecificationTypeDef:
        """One network interface on a network card; the first one with a public address where the login needs it."""
        place = self.place
        interface: InstanceNetworkInterfaceSpecificationTypeDef = {
            "DeviceIndex": device,
            "NetworkCardIndex": card,
            "DeleteOnTermination": True,
        }
        if kind != "interface":
            interface["InterfaceType"] = kind
        if place.subnet_id:
            interface["SubnetId"] = place.subnet_id
        if place.security_group_ids:
            interface["Groups"] = list(place.security_group_ids)
        if card == 0 and self._needs_public_address:
            interface["AssociatePublicIpAddress"] = True
        return interface

    def _efa_interfaces(self, instance_type: str) -> list[InstanceNetworkInterfaceSpecificationTypeDef]:
        """The instance's own interface on card 0, and an EFA on each network card that takes one.

        The cards are EC2's own (InterfaceTypes): on p6-b300, card 0 takes none.
        Further cards carry EFA-only interfaces, which need no address; those with room for one interface alone have it
        at device 0. EC2 gives a public address only to an instance with a single interface: where the login uses that,
        it has one. Sources: https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html, and for device
        indexes https://github.com/aws/aws-parallelcluster/pull/6930, read 2026-11-22.
        """
        with _translated(f"looking up the network cards of {instance_type}"):
            names = cast("Sequence[InstanceTypeType]", [instance_type])
            network = self.ec2.describe_instance_types(InstanceTypes=names)["InstanceTypes"][0]["NetworkInfo"]
        with_efa = [card for card in network.get("NetworkCards", []) if _takes_efa(card)]
        own = any(card["NetworkCardIndex"] == 0 for card in with_efa)
        interfaces = [self._interface(0, 0, "efa" if own else "interface")]
        if self.place.ssh_interface.startswith("public"):
            return interfaces
        return interfaces + [
            self._interface(card["NetworkCardIndex"], int(card["MaximumNetworkInterfaces"] > 1), "efa-only")
            for card in with_efa
            if card["NetworkCardIndex"] > 0
        ]

    def instance(self, instance_id: str) -> InstanceTypeDef:
        """The instance as DescribeInstances has it. CloudError: there is none."""
        return self._consistent([instance_id], lambda: self._describe(instance_id))

    def _describe(self, instance_id: str) -> InstanceTypeDef:
        with _translated(f"describing {instance_id}"):
            reservations = self.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
        if not reservations or not reservations[0]["Instances"]:
            code = "InvalidInstanceID.NotFound"  # an empty answer means the same
            raise aws_errors.from_code(f"describing {instance_id}", code, "DescribeInstances returned no instance")
        return reservations[0]["Instances"][0]

    def wait_for_state(
        self, instance_id: str, expected: str, timeout: float, cancelled: Callable[[], bool] = lambda: False
    ) -> InstanceTypeDef:
        """Polls each second until the instance is in the `expected` state; a terminal state ends it with its reason."""
        deadline = time.monotonic() + timeout
        while True:
            instance = self._answer_or_none(instance_id, deadline)
            if instance is None:
                time.sleep(_POLL_SECONDS)
                continue
            state = instance["State"]["Name"]
            if state == expected:
                return instance
            why = instance.get("StateReason", {})
            reason = why.get("Message", "")
            # A start that fails goes back to `stopped`; the reason of the stop before it is the user's (Client.…).
            failed = state == "stopped" and expected == "running" and why.get("Code", "").startswith("Server.")
            if failed or (state in ("terminated", "shutting-down") and expected != "terminated"):
                # EC2 reports lack of capacity on this path too (Server.InsufficientInstanceCapacity).
                kind = CapacityError if "InsufficientInstanceCapacity" in reason else CloudError
                hint = aws_errors.CAPACITY_HINT if kind is CapacityError else ""
                text = f"{instance_id} is {state}, expected {expected}"
                raise kind(text, details=[reason] if reason else [], hint=hint)
            if cancelled():
                raise CloudError(f"the wait for {instance_id} was cancelled")
            if time.monotonic() > deadline:
                raise CloudError(f"{instance_id} is {state} after {timeout:.0f} s, expected {expected}")
            time.sleep(_POLL_SECONDS)

    def _answer_or_none(self, instance_id: str, deadline: float) -> InstanceTypeDef | None:
        """The instance; None where AWS throttles this poll and there is time for another."""
        try:
            return self.instance(instance_id)
        except CloudError as error:
            if not aws_errors.is_throttled(error.code) or time.monotonic() > deadline:
                raise
            return None

    def console(self, instance_id: str) -> str:
        """The serial console as text ("" while there is none yet)."""
        with _translated(f"reading the console of {instance_id}"):
            try:
                answer = self.ec2.get_console_output(InstanceId=instance_id, Latest=True)
            except self.ec2.exceptions.ClientError as error:  # only Nitro instances know Latest
                if error.response.get("Error", {}).get("Code") != "UnsupportedOperation":
                    raise
                answer = self.ec2.get_console_output(InstanceId=instance_id)
        output = answer.get("Output", "")
        try:  # botocore decodes the base64 for us; an endpoint that sends it twice does not lose the text
            return base64.b64decode(output, validate=True).decode(errors="replace")
        except ValueError:
            return output

    def stop(self, instance_id: str) -> None:
        """Orders StopInstances; the guest shuts down by itself."""
        with _translated(f"stopping {instance_id}"):
            self.ec2.stop_instances(InstanceIds=[instance_id])

    def start(self, instance_id: str) -> None:
        """Orders StartInstances; on AWS the instance comes up on another host. CapacityError where there is none."""
        with _translated(f"starting {instance_id}"):
            self.ec2.start_instances(InstanceIds=[instance_id])

    def terminate(self, instance_ids: list[str]) -> None:
        """Orders TerminateInstances."""
        if instance_ids:
            self._consistent(instance_ids, lambda: self._terminate(instance_ids))
        for instance_id in instance_ids:
            self.forget_end(instance_id)

    def _terminate(self, instance_ids: list[str]) -> None:
        with _translated(f"terminating {', '.join(instance_ids)}"):
            self.ec2.terminate_instances(InstanceIds=instance_ids)

    def image(self, ami: str) -> ImageTypeDef | None:
        """The image, or None where it is not there any more."""
        with _translated(f"describing {ami}"):
            images = self.ec2.describe_images(Filters=[{"Name": "image-id", "Values": [ami]}])["Images"]
        return images[0] if images else None

    def require_imds_v2(self, ami: str) -> None:
        """Makes every launch from this image ask for IMDSv2 (ModifyImageAttribute)."""
        self._consistent([ami], lambda: self._require_imds_v2(ami))

    def _require_imds_v2(self, ami: str) -> None:
        with _translated(f"requiring IMDSv2 on {ami}"):
            self.ec2.modify_image_attribute(ImageId=ami, ImdsSupport={"Value": "v2.0"})

    def wait_for_image(self, ami: str, timeout: float = _CONSISTENT_SECONDS) -> ImageTypeDef | None:
        """The image as soon as DescribeImages knows it; None after `timeout` seconds."""
        deadline = time.monotonic() + timeout
        while (image := self.image(ami)) is None and time.monotonic() < deadline:
            time.sleep(_POLL_SECONDS)
        return image

    def harden(self, instance_id: str) -> None:
        """Makes a running instance ask for IMDSv2 (ModifyInstanceMetadataOptions): a builder of a Packer before 1.7."""
        self.wait_for_state(instance_id, "running", 300)  # EC2 refuses the call while the instance is pending
        with _translated(f"requiring IMDSv2 on {instance_id}"):
            self.ec2.modify_instance_metadata_options(InstanceId=instance_id, HttpTokens="required")

    def default_security_group(self) -> str:
        """Id of the default group of the place's VPC (without a subnet, the region's default VPC). UsageError: none."""
        hint = "set subnet_id and security_group_ids in the --where file"
        with _translated("looking up the default security group"):
            if self.place.subnet_id:
                wanted: list[FilterTypeDef] = [{"Name": "subnet-id", "Values": [self.place.subnet_id]}]
                vpcs = [subnet["VpcId"] for subnet in self.ec2.describe_subnets(Filters=wanted)["Subnets"]]
            else:
                wanted = [{"Name": "is-default", "Values": ["true"]}]
                vpcs = [vpc["VpcId"] for vpc in self.ec2.describe_vpcs(Filters=wanted)["Vpcs"]]
            named: list[FilterTypeDef] = [{"Name": "group-name", "Values": ["default"]}]
            named.append({"Name": "vpc-id", "Values": vpcs})
            groups = self.ec2.describe_security_groups(Filters=named)["SecurityGroups"] if vpcs else []
        if not groups:
            raise UsageError(f"{self.place.region} has no VPC to work in", hint=hint)
        return groups[0]["GroupId"]

    def tagged(self, key: str) -> list[Resource]:
        """Everything here that can hold money or a secret and carries the tag `key`: what `sweep` looks through.

        Images and snapshots are among them: `sweep` takes only those that are incomplete or past their time.
        """
        only: list[FilterTypeDef] = [{"Name": "tag-key", "Values": [key]}]
        resources: list[Resource] = []
        with _translated(f"listing what carries the tag {key}"):
            for reservations in self.ec2.get_paginator("describe_instances").paginate(Filters=only):
                for reservation in reservations["Reservations"]:
                    resources += [_instance_resource(instance) for instance in reservation["Instances"]]
            for pair in self.ec2.describe_key_pairs(Filters=only)["KeyPairs"]:
                resources.append(Resource("key-pair", pair["KeyName"], tags_of(pair)))
            for groups in self.ec2.get_paginator("describe_security_groups").paginate(Filters=only):
                for group in groups["SecurityGroups"]:
                    resources.append(Resource("security-group", group["GroupId"], tags_of(group)))
            for volumes in self.ec2.get_paginator("describe_volumes").paginate(Filters=only):
                for volume in volumes["Volumes"]:
                    resources.append(Resource("volume", volume["VolumeId"], tags_of(volume), volume["State"]))
            for images in self.ec2.get_paginator("describe_images").paginate(
                Owners=["self"], Filters=only, IncludeDeprecated=True
            ):
                resources += [_image_resource(image) for image in images["Images"]]
            for snapshots in self.ec2.get_paginator("describe_snapshots").paginate(OwnerIds=["self"], Filters=only):
                for snapshot in snapshots["Snapshots"]:
                    resources.append(Resource("snapshot", snapshot["SnapshotId"], tags_of(snapshot), snapshot["State"]))
        gone = ("terminated", "shutting-down", "deleting", "in-use")
        return [resource for resource in resources if resource.state not in gone]

    def named_keys(self, name: str) -> list[str]:
        """Key pairs of exactly this name: Packer's temporary one carries no tag in old releases, only its name."""
        with _translated(f"looking for key pair {name}"):
            pairs = self.ec2.describe_key_pairs(Filters=[{"Name": "key-name", "Values": [name]}])["KeyPairs"]
        return [pair["KeyName"] for pair in pairs]

    def remove(self, resource: Resource) -> None:
        """Ends one leftover; instances are waited for, since what hangs on them can go only afterwards."""
        if resource.kind == "instance":
            self.terminate([resource.id])
            self.wait_for_state(resource.id, "terminated", 300)
            return
        with _translated(f"removing {resource.kind} {resource.id}"):
            if resource.kind == "key-pair":
                self.ec2.delete_key_pair(KeyName=resource.id)
            elif resource.kind == "security-group":
                self.ec2.delete_security_group(GroupId=resource.id)
            elif resource.kind == "volume":
                self.ec2.delete_volume(VolumeId=resource.id)
            elif resource.kind == "image":
                self.ec2.deregister_image(ImageId=resource.id)
            elif resource.kind == "snapshot":
                self.ec2.delete_snapshot(SnapshotId=resource.id)
            else:
                raise CloudError(f"{resource.kind} {resource.id}: unsupported resource type")


@dataclass(frozen=True)
class Resource:
    """One thing in the cloud.

    attached: temporary key pairs and security groups that a Packer builder came with; snapshots of an image.
    """

    kind: str
    id: str
    tags: Mapping[str, str]
    state: str = ""
    attached: tuple[tuple[str, str], ...] = ()


def _image_resource(image: ImageTypeDef) -> Resource:
    devices = image.get("BlockDeviceMappings", [])
    snapshots = [device["Ebs"]["SnapshotId"] for device in devices if "SnapshotId" in device.get("Ebs", {})]
    attached = tuple(("snapshot", snapshot) for snapshot in snapshots)
    return Resource("image", image["ImageId"], tags_of(image), image["State"], attached)


def _instance_resource(instance: InstanceTypeDef) -> Resource:
    # Packer names what it makes for one build packer_<uuid>; other groups and keys belong to somebody.
    groups = [
        ("security-group", group["GroupId"])
        for group in instance.get("SecurityGroups", [])
        if group["GroupName"].startswith("packer_")
    ]
    key = instance.get("KeyName", "")
    keys = [("key-pair", key)] if key.startswith(("packer_", "gpu-ami-")) else []
    state = instance["State"]["Name"]
    return Resource("instance", instance["InstanceId"], tags_of(instance), state, tuple(keys + groups))
