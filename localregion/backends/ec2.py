"""moto's EC2 as the region uses it: a network on loopback addresses, images with disks, states of real machines.

Only this package uses moto's objects. moto changes states at once; `set_state` shows what the machine behind an
instance does.
"""

from __future__ import annotations

import base64
import contextlib
import copy
import ipaddress
import json
import re
import threading
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from moto.core.models import DEFAULT_ACCOUNT_ID
from moto.core.parse import default_timestamp_parser
from moto.ec2.models import ec2_backends
from moto.ec2.models.amis import Ami
from moto.ec2.models.instance_types import INSTANCE_TYPES as _MOTO_TYPES
from moto.ec2.models.instances import Instance, StateReason
from moto.ec2.responses.instances import InstanceResponse
from moto.iam.models import iam_backends
from moto.kms.models import kms_backends

from localregion.backends import ec2_groups
from localregion.backends.ec2_groups import PlacementGroups
from localregion.backends.instance import InstanceView
from localregion.state import ImageRecord

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import EbsBlockDeviceTypeDef

REGION = "us-east-1"
ZONES = (f"{REGION}a", f"{REGION}b")
ZONE = ZONES[0]
PROFILE = "gpu-ami-local"
# An AMI's boot mode: Graviton has UEFI firmware alone (docs.aws.amazon.com, EC2 user guide, boot modes; 2026-11-25).
_BOOT_MODES = {"x86_64": "legacy-bios", "arm64": "uefi"}
# EC2's codes: docs.aws.amazon.com, API reference, InstanceState.
_CODES = {"pending": 0, "running": 16, "shutting-down": 32, "terminated": 48, "stopping": 64, "stopped": 80}
_TRANSITIONS = ("pending", "shutting-down", "stopping")
_ASSUME = {
    "Version": "2012-10-17",
    "Statement": [{"Effect": "Allow", "Principal": {"Service": "ec2.amazonaws.com"}, "Action": "sts:AssumeRole"}],
}


_plain_terminate = Instance.terminate
_plain_mappings = InstanceResponse._parse_block_device_mapping


def architectures_of(instance_type: str) -> tuple[str, ...]:
    """The architectures of an instance type, as of moto's release; none of a type that it does not know."""
    return tuple(_MOTO_TYPES.get(instance_type, {}).get("ProcessorInfo", {}).get("SupportedArchitectures", ()))


def fraction_of(instance_type: str) -> str:
    """The GPU of which an instance type has a part ("L4"); "" of types with whole GPUs, and of unknown ones."""
    for gpu in _MOTO_TYPES.get(instance_type, {}).get("GpuInfo", {}).get("Gpus", ()):
        if gpu.get("GpuPartitionSize", 1) < 1:
            return str(gpu["Name"])
    return ""


def _terminate(instance: Any) -> Any:
    """EC2 answers TerminateInstances for an instance that has been terminated; moto looks for its deleted interface."""
    if instance.state in ("terminated", "shutting-down"):
        return copy.copy(instance._state)
    return _plain_terminate(instance)


def _mappings(request: Any) -> list[dict[str, Any]]:
    """EC2 takes mappings to volumes of the instance store, and settings of the AMI's root volume without its size.

    moto wants a volume of EBS with a size in each. Source: EC2 API reference, BlockDeviceMapping and EbsBlockDevice.
    """
    given = request._get_param("BlockDeviceMappings", [])
    image = request.ec2_backend.amis.get(request._get_param("ImageId"))
    for mapping in given if image else ():
        ebs = mapping.get("Ebs", {})
        if ebs and mapping.get("DeviceName") == image.root_device_name and not ebs.get("VolumeSize"):
            ebs.setdefault("SnapshotId", image.ebs_snapshot.id)
    given[:] = [mapping for mapping in given if "VirtualName" not in mapping or "Ebs" in mapping]
    return _plain_mappings(request)


def install() -> None:
    """Makes moto answer so. Idempotent."""
    InstanceResponse._parse_block_device_mapping = _mappings  # type: ignore[method-assign, assignment]
    Instance.terminate = _terminate  # type: ignore[method-assign, assignment]


class RegionAmi(Ami):
    """An AMI whose block devices are those of its record (moto's are 15 GB, unencrypted, on any image)."""

    record: ImageRecord

    @property
    def block_device_mappings(self) -> list[dict[str, Any]]:
        ebs: EbsBlockDeviceTypeDef = {
            "SnapshotId": self.ebs_snapshot.id,
            "VolumeSize": self.record.size_gib,
            "DeleteOnTermination": True,
            "VolumeType": "gp3",
            "Encrypted": self.record.encrypted,
        }
        if self.record.kms_key_id:
            ebs["KmsKeyId"] = self.record.kms_key_id
        return [{"DeviceName": self.root_device_name, "Ebs": ebs}]


class Ec2:
    """The region's EC2 state: `backend` is moto's, `subnet_id`, `group_id` and `profile` are what an instance needs."""

    def __init__(self, cidr: str) -> None:
        self.account = DEFAULT_ACCOUNT_ID
        self._changed = threading.Condition()  # a state
        self.backend: Any = ec2_backends[self.account][REGION]
        self._iam: Any = iam_backends[self.account]["aws"]
        self.cidr = cidr
        self.placement_groups = PlacementGroups(self.instances)
        self.vpc_id, self.subnet_ids = self._make_network(cidr)
        self.subnet_id = self.subnet_ids[0]
        group = self.backend.create_security_group("gpu-ami-local", "instances of the local region", vpc_id=self.vpc_id)
        self.group_id = str(group.id)
        self.profile = self._make_profile()
        self.ebs_default_key = ""  # ARN of the account's default key for EBS, with encryption by default; "" for none

    def _make_network(self, cidr: str) -> tuple[str, tuple[str, ...]]:
        """The default VPC with a subnet in each zone: an instance without a subnet gets a loopback address, too."""
        backend = self.backend
        backend.subnets.clear()
        for vpc_id in list(backend.vpcs):
            backend.vpcs.pop(vpc_id)
            backend.groups.pop(vpc_id, None)
        vpc = backend.create_vpc(cidr, is_default=True)
        backend.default_vpc = vpc
        halves = ipaddress.ip_network(cidr).subnets(prefixlen_diff=1)
        subnets = [
            backend.create_subnet(vpc.id, str(half), availability_zone=zone)
            for half, zone in zip(halves, ZONES, strict=True)
        ]
        for subnet in subnets:
            subnet.map_public_ip_on_launch = False
        return str(vpc.id), tuple(str(subnet.id) for subnet in subnets)

    def zone_of(self, subnet_id: str) -> str:
        """The zone of a subnet; the first zone where there is none of that id."""
        rows = [zones[subnet_id] for zones in self.backend.subnets.values() if subnet_id in zones]
        return str(rows[0].availability_zone) if rows else ZONE

    def _cidr_of(self, subnet_id: str) -> str:
        rows = [zones[subnet_id] for zones in self.backend.subnets.values() if subnet_id in zones]
        return str(rows[0].cidr_block) if rows else self.cidr

    def _make_profile(self) -> str:
        with contextlib.suppress(Exception):  # a second region in one process (tests): it exists
            self._iam.create_role(PROFILE, json.dumps(_ASSUME), "/", None, "instances of the local region", [], "3600")
            self._iam.create_instance_profile(PROFILE, "/", [PROFILE])
        return PROFILE

    def make_role(self, name: str, path: str, trust: str) -> None:
        """A role of the account, with its trust policy; one of that name stays."""
        with contextlib.suppress(Exception):
            self._iam.create_role(name, trust, path, None, "", [], "3600")

    def make_key(self, state: str) -> str:
        """A customer managed key for volumes, `enabled` or `disabled`; its ARN."""
        keys: Any = kms_backends[self.account][REGION]
        key = keys.create_key(None, "ENCRYPT_DECRYPT", "SYMMETRIC_DEFAULT", "EBS", None)
        if state == "disabled":
            key.enabled, key.key_state = False, "Disabled"
        return str(key.arn)

    def key_failure(self, instance: Any) -> tuple[str, str] | None:
        """StateReason of a launch whose volume cannot be encrypted with its key; None where it can.

        Source: EC2 user guide, "Instance terminates immediately".
        """
        volume = self.root_volume(instance)
        if volume is None or not volume.kms_key_id:
            return None
        keys: Any = kms_backends[self.account][REGION]
        try:
            key = keys.describe_key(keys.get_key_id(keys.get_key_id_from_alias(volume.kms_key_id) or volume.kms_key_id))
        except Exception:  # an ARN may be of another account, whose keys are not judged here
            key = None
        is_usable = volume.kms_key_id.startswith("arn:") if key is None else key.enabled
        if is_usable and (key is None or key.key_usage == "ENCRYPT_DECRYPT"):
            return None
        return "Client.InternalError", "Client.InternalError: Client error on launch"

    # Instances

    def instances(self) -> list[Any]:
        return list(self.backend.all_instances())

    def instance(self, instance_id: str) -> Any | None:
        return self.backend.get_instance_by_id(instance_id)

    def place(self, instance_id: str, group: str) -> None:
        """Remembers the placement group of a launch, which moto's does not. group: "" for none."""
        instance = self.instance(instance_id)
        if instance is not None:
            instance.placement.group_name = group

    def share_profile(self, instance_ids: Sequence[str]) -> None:
        """Gives all instances of a launch its instance profile, which moto gives to the first one only."""
        instances = [instance for instance in map(self.instance, instance_ids) if instance is not None]
        profile = self._profile_of(instances[0]) if instances else None
        if profile is not None:
            for instance in instances[1:]:
                self.backend.associate_iam_instance_profile(instance.id, iam_instance_profile_arn=profile.arn)

    def set_state(self, instance: Any, name: str, code: str = "", message: str = "") -> None:
        """What DescribeInstances shows; with `code`, why (such as Server.InternalError)."""
        instance._state.name, instance._state.code = name, _CODES[name]
        if code:
            self.set_reason(instance, code, message)
            instance._reason = f"{message} ({datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC)"
        self._tell_change()

    def _tell_change(self) -> None:
        with self._changed:
            self._changed.notify_all()

    def settled(self, resource_ids: Iterable[str], seconds: float) -> bool:
        """Waits until none of these instances and images is between two states, at most so long; whether it is so."""
        named = set(resource_ids)
        with self._changed:
            return self._changed.wait_for(lambda: not any(map(self._is_changing, named)), seconds)

    def _is_changing(self, resource_id: str) -> bool:
        resource = self.instance(resource_id) or self.backend.amis.get(resource_id)
        return resource is not None and resource.state in _TRANSITIONS

    def set_reason(self, instance: Any, code: str = "", message: str = "") -> None:
        """The StateReason of an instance whose state stays as it is; none without `code`."""
        instance.state_reason = StateReason(f"{code}: {message}", code) if code else None

    def settle_launch(self, instance: Any) -> None:
        """Gives an instance its security groups and the root volume of its image, as EC2 does and moto does not."""
        if not instance.security_groups:
            instance.security_groups = self.groups_of(instance)
        image = self.backend.amis.get(instance.image_id)
        mapping = instance.block_device_mapping
        if isinstance(image, RegionAmi):
            root = image.root_device_name
            if root not in mapping and "/dev/sda1" in mapping:
                mapping[root] = mapping.pop("/dev/sda1")
            volume = self.root_volume(instance)
            if volume is not None:
                volume.snapshot_id = volume.snapshot_id or image.ebs_snapshot.id
                volume.encrypted = volume.encrypted or image.record.encrypted or bool(self.ebs_default_key)
                volume.kms_key_id = volume.kms_key_id or image.record.kms_key_id or self.ebs_default_key or None
                volume.size = max(int(volume.size or 0), image.record.size_gib)

    def root_volume(self, instance: Any) -> Any | None:
        device = instance.block_device_mapping.get(instance.root_device_name)
        return self.backend.volumes.get(device.volume_id) if device else None

    def tags(self, resource_id: str) -> dict[str, str]:
        """Tags of a resource; of other regions, too, which have copies of images."""
        backends = (self.backend, *ec2_backends[self.account].values())
        return next((dict(each.tags[resource_id]) for each in backends if resource_id in each.tags), {})

    def snapshots_of(self, image_id: str) -> list[str]:
        """The snapshots behind an image of any region."""
        images = [each.amis[image_id] for each in ec2_backends[self.account].values() if image_id in each.amis]
        return [str(image.ebs_snapshot.id) for image in images]

    def instance_profile(self, name: str) -> Any | None:
        """moto's instance profile of that name."""
        return next((profile for profile in self._iam.instance_profiles.values() if profile.name == name), None)

    def role_arn(self, profile: str) -> str:
        """The ARN of the role in an instance profile, which its name or its ARN names; "" where there is none."""
        matching = [each for each in self._iam.instance_profiles.values() if profile in (each.name, each.arn)]
        roles = [role for each in matching for role in each.roles]
        return str(roles[0].arn) if roles else ""

    def image_key(self, image_id: str) -> str:
        """The KMS key that an image's snapshot is encrypted with; "" for none."""
        image = self.backend.amis.get(image_id)
        return (image.record.kms_key_id or "") if isinstance(image, RegionAmi) else ""

    def default_group(self) -> str:
        """The default security group of the region's VPC."""
        groups = self.backend.groups[self.vpc_id].values()
        return str(next(group.id for group in groups if group.name == "default"))

    def set_group_rules(self, rules: ec2_groups.GroupRules | None, ssh_port: int) -> None:
        """The rules of the region's own group. None: nothing is filtered, and the default group has such rules, too."""
        for group_id in (self.group_id,) if rules else (self.group_id, self.default_group()):
            ec2_groups.set_rules(self.backend, group_id, rules or ec2_groups.OPEN, ssh_port)

    def groups_of(self, instance: Any) -> list[Any]:
        """moto's security groups of an instance."""
        default = self.backend.groups[self.vpc_id][self.default_group()]
        return ec2_groups.groups_of(instance, default)

    def view(self, instance: Any) -> InstanceView:
        """What the instance may know about itself."""
        interface = instance.nics[0]
        key = self.backend.key_pairs.get(instance.key_name) if instance.key_name else None
        profile = self._profile_of(instance)
        options = instance.metadata_options
        return InstanceView(
            instance_id=instance.id,
            image_id=instance.image_id,
            instance_type=instance.instance_type,
            launch_index=int(instance.ami_launch_index),
            reservation_id=self._reservation_of(instance),
            account_id=self.account,
            region=REGION,
            zone=instance.availability_zone or ZONE,
            architecture=instance.architecture or "x86_64",
            launch_time=instance.launch_time,
            address=interface.private_ip_address,
            hostname=instance.private_dns_name,
            mac=interface.mac_address,
            interface_id=interface.id,
            subnet_id=instance.subnet_id or self.subnet_id,
            subnet_cidr=self._cidr_of(instance.subnet_id or self.subnet_id),
            vpc_id=instance.vpc_id or self.vpc_id,
            vpc_cidr=self.cidr,
            root_device_name=instance.root_device_name,
            security_groups=tuple((group.id, group.name) for group in instance.security_groups),
            key_name=instance.key_name,
            public_key=named_key(key.public_key, instance.key_name) if key else None,
            user_data=_user_data(instance.user_data),
            profile_arn=profile.arn if profile else None,
            profile_id=profile.id if profile else None,
            role=profile.roles[0].name if profile and profile.roles else None,
            tags=self.tags(instance.id),
            tokens_required=options.http_tokens != "optional",
            endpoint_enabled=options.http_endpoint != "disabled",
            tags_enabled=options.instance_metadata_tags == "enabled",
        )

    def _profile_of(self, instance: Any) -> Any | None:
        attached = instance.iam_instance_profile
        arn = attached.get("Arn") if isinstance(attached, dict) else None
        return next((profile for profile in self._iam.instance_profiles.values() if profile.arn == arn), None)

    def _reservation_of(self, instance: Any) -> str:
        ids = (each.id for each in self.backend.reservations.values() if instance in each.instances)
        return str(next(ids, ""))

    # Images

    def images(self) -> dict[str, Ami]:
        return dict(self.backend.amis)

    def register(self, record: ImageRecord) -> None:
        """Registers an image that has a disk: same id, name, tags and snapshot at each `up`."""
        image = RegionAmi(
            self.backend,
            record.id,
            name=record.name,
            description=record.description,
            owner_id=record.owner_id,
            owner_alias=record.owner_alias,
            public=record.public,
            virtualization_type="hvm",
            architecture=record.architecture,
            creation_date=default_timestamp_parser(record.creation_date),
            hypervisor="xen",
            root_device_type="ebs",
            root_device_name=record.root_device_name,
            region_name=ZONE,
            boot_mode=_BOOT_MODES[record.architecture],
            image_location=f"{record.owner_id}/{record.name}",
        )
        image.record = record
        image.instance_id = record.source_instance_id
        self._rename_snapshot(image, record)
        self.backend.amis[record.id] = image
        self.backend.create_tags([record.id], record.tags)
        self.backend.create_tags([record.snapshot_id], record.snapshot_tags)

    def point_parameter(self, name: str, image_id: str) -> None:
        """Sets an SSM public parameter to the image (the API refuses writes below /aws)."""
        from moto.ssm import models as ssm

        make: Any = ssm.Parameter
        versions = ssm.ssm_backends[self.account][REGION]._parameters[name]
        versions.append(
            make(
                self.account, name, image_id, "String", None, None, None, datetime.now(UTC),
                version=versions[-1].version + 1 if versions else 1,
                data_type="aws:ec2:image",
            )
        )  # fmt: skip

    def _rename_snapshot(self, image: Any, record: ImageRecord) -> None:
        snapshot = image.ebs_snapshot
        self.backend.snapshots.pop(snapshot.id)
        snapshot.id = record.snapshot_id
        snapshot.volume.size = record.size_gib
        snapshot.encrypted, snapshot.kms_key_id = record.encrypted, record.kms_key_id
        snapshot.start_time = image.creation_date
        self.backend.snapshots[snapshot.id] = snapshot

    def record_of_new(self, image: Any) -> ImageRecord:
        """The record of an image that CreateImage or CopyImage has just made in moto."""
        instance = self.instance(image.instance_id) if image.instance_id else None
        volume = self.root_volume(instance) if instance else None
        return ImageRecord(
            id=image.id,
            name=image.name or image.id,
            description=image.description or "",
            owner_id=image.owner_id,
            architecture=image.architecture or "x86_64",
            root_device_name=instance.root_device_name if instance else image.root_device_name,
            snapshot_id=image.ebs_snapshot.id,
            size_gib=int(volume.size) if volume else 8,
            creation_date=f"{image.creation_date:%Y-%m-%dT%H:%M:%S}.000Z",
            encrypted=bool(volume and volume.encrypted),
            kms_key_id=volume.kms_key_id if volume else None,
            source_instance_id=image.instance_id,
        )

    def adopt(self, image: Any, record: ImageRecord, state: str) -> None:
        """Makes moto's new image show `record`, in `state` (pending, available, failed)."""
        image.__class__ = RegionAmi
        image.record = record
        image.root_device_name = record.root_device_name
        image.root_device_type = "ebs"
        image.virtualization_type, image.hypervisor = "hvm", "xen"
        image.boot_mode = _BOOT_MODES[record.architecture]
        image.image_location = f"{record.owner_id}/{record.name}"
        snapshot = image.ebs_snapshot
        snapshot.volume.size = record.size_gib
        snapshot.encrypted, snapshot.kms_key_id = record.encrypted, record.kms_key_id
        self.set_image_state(image, state)

    def set_image_state(self, image: Any, state: str) -> None:
        image.state = state
        image.ebs_snapshot.status = {"pending": "pending", "available": "completed"}.get(state, "error")
        self._tell_change()


def named_key(public_key: str, name: str) -> str:
    """A key as the metadata service has it: with the key pair's name, by which Packer removes its own from an image.

    https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/describe-keys.html (public-keys/0/openssh-key)
    """
    return public_key if len(public_key.split()) > 2 else f"{public_key.strip()} {name}"


def _user_data(data: Any) -> bytes | None:
    return None if data is None else base64.b64decode(re.sub(r"\s", "", str(data)))
