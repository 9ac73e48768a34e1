"""The driver's only door to AWS: launch, watch and end instances, read images, find leftovers.

Everything is tagged by the call that creates it. The same code runs against AWS and against the local region: a place
differs in its endpoint, never in a branch here.
"""

from __future__ import annotations

import base64
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from gpu_ami.errors import CapacityError, CloudError, UsageError

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import ImageTypeDef, InstanceTypeDef, TagSpecificationTypeDef

    from gpu_ami.place import Place

# EC2's own words for "not now": the image is not to blame and the verdict is UNAVAILABLE.
_NO_CAPACITY = {
    "InsufficientInstanceCapacity", "InsufficientHostCapacity", "InsufficientReservedInstanceCapacity",
    "InstanceLimitExceeded", "VcpuLimitExceeded", "MaxSpotInstanceCountExceeded", "Unsupported",
    "InsufficientCapacity", "ReservationCapacityExceeded",
}  # fmt: skip
_HINTS = {
    "UnauthorizedOperation": "the credentials lack a permission: the message names the action",
    "AuthFailure": "check the credentials and the clock of this machine",
    "RequestExpired": "the credentials have expired: log in again",
    "InvalidAMIID.NotFound": "the AMI is not in this region, or was deregistered: `gpu-ami build` makes it anew",
    "InvalidSubnetID.NotFound": "subnet_id of the --where file is not in this region",
}
_POLL_SECONDS = 1.0
_RESOURCES = ("instance", "volume", "network-interface")


@dataclass(frozen=True)
class Launch:
    """What RunInstances is asked for. `tags` go on the instance, its volumes and its interface at creation.

    efa_interfaces: how many network cards of the type take an EFA; 0: an ordinary interface.
    """

    ami: str
    instance_type: str
    key_name: str
    tags: Mapping[str, str]
    user_data: str
    efa_interfaces: int = 0


@contextmanager
def _translated(doing: str) -> Iterator[None]:
    """Botocore's errors as ours: what we were doing, what AWS said, what to do."""
    from botocore import exceptions

    try:
        yield
    except exceptions.ClientError as error:
        found = error.response.get("Error", {})
        code, text = found.get("Code", "?"), found.get("Message", str(error))
        if code in _NO_CAPACITY:
            raise CapacityError(
                f"{doing}: {code}", details=[text], hint="try another zone or a reservation, or later"
            ) from error
        raise CloudError(f"{doing}: {code}", details=[text], hint=_HINTS.get(code, "")) from error
    except (exceptions.NoCredentialsError, exceptions.ProfileNotFound, exceptions.PartialCredentialsError) as error:
        raise UsageError(f"{doing}: {error}", hint="set profile in the --where file, or AWS_PROFILE") from error
    except exceptions.NoRegionError as error:
        raise UsageError(f"{doing}: no region", hint="set region in the --where file") from error
    except exceptions.BotoCoreError as error:
        raise CloudError(f"{doing}: {error}", hint="is the endpoint reachable from this machine?") from error


def _tag_list(tags: Mapping[str, str]) -> list[dict[str, str]]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


def tags_of(resource: Mapping[str, Any]) -> dict[str, str]:
    return {tag["Key"]: tag["Value"] for tag in resource.get("Tags") or []}


class Cloud:
    """EC2 in one place. Errors: CloudError, CapacityError, UsageError (credentials)."""

    def __init__(self, place: Place) -> None:
        self.place = place
        self._ec2: EC2Client | None = None

    @property
    def ec2(self) -> EC2Client:
        if self._ec2 is None:
            with _translated("opening a session"):
                self._ec2 = cast("EC2Client", self.client("ec2"))
        return self._ec2

    def client(self, service: str) -> Any:
        """A boto3 client of this place's region, endpoint and credentials."""
        import boto3
        from botocore.config import Config

        given = self.place.credentials
        session = boto3.Session(
            profile_name=self.place.profile or None,
            region_name=self.place.region,
            aws_access_key_id=given.access_key_id if given else None,
            aws_secret_access_key=given.secret_access_key if given else None,
        )
        # Transport errors and throttling are retried here and nowhere else.
        config = Config(retries={"mode": "standard", "total_max_attempts": 6}, connect_timeout=10, read_timeout=60)
        return session.client(cast(Any, service), endpoint_url=self.place.endpoint or None, config=config)

    def import_key(self, name: str, public_key: str, tags: Mapping[str, str]) -> None:
        with _translated(f"importing key pair {name}"):
            self.ec2.import_key_pair(
                KeyName=name,
                PublicKeyMaterial=public_key.encode(),
                TagSpecifications=cast("Any", [{"ResourceType": "key-pair", "Tags": _tag_list(tags)}]),
            )

    def delete_key(self, name: str) -> None:
        with _translated(f"deleting key pair {name}"):
            self.ec2.delete_key_pair(KeyName=name)

    def launch(self, wanted: Launch) -> str:
        """Starts one instance and returns its id. IMDSv2 only; shut down from inside means terminated."""
        place = self.place
        specifications = [{"ResourceType": kind, "Tags": _tag_list(wanted.tags)} for kind in _RESOURCES]
        request: dict[str, Any] = {
            "ImageId": wanted.ami,
            "InstanceType": wanted.instance_type,
            "MinCount": 1,
            "MaxCount": 1,
            "KeyName": wanted.key_name,
            "UserData": wanted.user_data,
            "InstanceInitiatedShutdownBehavior": "terminate",
            "MetadataOptions": {"HttpTokens": "required", "HttpEndpoint": "enabled", "HttpPutResponseHopLimit": 2},
            "TagSpecifications": cast("list[TagSpecificationTypeDef]", specifications),
        }
        if wanted.efa_interfaces:
            request["NetworkInterfaces"] = self._efa_interfaces(wanted.efa_interfaces)
        else:
            request |= self._network("SubnetId", "SecurityGroupIds")
        if place.instance_profile:
            request["IamInstanceProfile"] = {"Name": place.instance_profile}
        with _translated(f"launching {wanted.instance_type} from {wanted.ami}"):
            return self.ec2.run_instances(**request)["Instances"][0]["InstanceId"]

    def _network(self, subnet: str, groups: str) -> dict[str, Any]:
        """The place's subnet and security groups, under the names that the call has for them."""
        place = self.place
        found: dict[str, Any] = {subnet: place.subnet_id} if place.subnet_id else {}
        return found | ({groups: list(place.security_group_ids)} if place.security_group_ids else {})

    def _efa_interfaces(self, cards: int) -> list[dict[str, Any]]:
        """One EFA a network card, the first of them the instance's own interface.

        EC2 gives a public address only to an instance with a single interface: where we come in by that, it has one
        (https://docs.aws.amazon.com/AWSEC2/latest/UserGuide/efa-acc-inst-types.html).
        """
        count = 1 if self.place.ssh_interface.startswith("public") else cards
        return [
            {
                "DeviceIndex": min(card, 1),
                "NetworkCardIndex": card,
                "InterfaceType": "efa",
                "DeleteOnTermination": True,
                **self._network("SubnetId", "Groups"),
            }
            for card in range(count)
        ]

    def instance(self, instance_id: str) -> InstanceTypeDef:
        with _translated(f"describing {instance_id}"):
            return self.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"][0]["Instances"][0]

    def wait_for_state(
        self, instance_id: str, wanted: str, timeout: float, cancelled: Callable[[], bool] = lambda: False
    ) -> InstanceTypeDef:
        """Polls each second until the instance is `wanted`; a terminal state on the way ends it with its reason."""
        deadline = time.monotonic() + timeout
        while True:
            found = self.instance(instance_id)
            state = found["State"]["Name"]
            if state == wanted:
                return found
            why = found.get("StateReason", {})
            reason = why.get("Message", "")
            # A start that fails goes back to `stopped`; the reason of the stop before it is the user's (Client.…).
            failed = state == "stopped" and wanted == "running" and why.get("Code", "").startswith("Server.")
            if failed or (state in ("terminated", "shutting-down") and wanted != "terminated"):
                # EC2 reports lack of capacity on this path too (Server.InsufficientInstanceCapacity).
                kind = CapacityError if "InsufficientInstanceCapacity" in reason else CloudError
                raise kind(f"{instance_id} is {state} while we waited for {wanted}", details=[reason] if reason else [])
            if cancelled():
                raise CloudError(f"waiting for {instance_id} was cancelled")
            if time.monotonic() > deadline:
                raise CloudError(f"{instance_id} is {state}, not {wanted}, after {timeout:.0f} s")
            time.sleep(_POLL_SECONDS)

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
        if instance_ids:
            with _translated(f"terminating {', '.join(instance_ids)}"):
                self.ec2.terminate_instances(InstanceIds=instance_ids)

    def image(self, ami: str) -> ImageTypeDef | None:
        """The image, or None where it is not there any more."""
        with _translated(f"describing {ami}"):
            images = self.ec2.describe_images(Filters=[{"Name": "image-id", "Values": [ami]}])["Images"]
        return images[0] if images else None

    def require_imds_v2(self, ami: str) -> None:
        """Makes every launch from this image ask for IMDSv2 (ModifyImageAttribute)."""
        with _translated(f"requiring IMDSv2 on {ami}"):
            self.ec2.modify_image_attribute(ImageId=ami, ImdsSupport={"Value": "v2.0"})

    def harden(self, instance_id: str) -> None:
        """Makes a running instance ask for IMDSv2 (ModifyInstanceMetadataOptions): a builder of a Packer before 1.7."""
        self.wait_for_state(instance_id, "running", 300)  # EC2 refuses the call while the instance is pending
        with _translated(f"requiring IMDSv2 on {instance_id}"):
            self.ec2.modify_instance_metadata_options(InstanceId=instance_id, HttpTokens="required")

    def tagged(self, key: str) -> list[Resource]:
        """Everything here that can hold money or a secret and carries the tag `key`: what `sweep` looks through.

        Images and their snapshots are products, not leftovers, and are not listed.
        """
        only: list[dict[str, Any]] = [{"Name": "tag-key", "Values": [key]}]
        found: list[Resource] = []
        with _translated(f"listing what carries the tag {key}"):
            for one in self._pages("describe_instances", "Reservations", only):
                found += [_instance_resource(instance) for instance in one["Instances"]]
            for pair in self.ec2.describe_key_pairs(Filters=cast("Any", only))["KeyPairs"]:
                found.append(Resource("key-pair", pair["KeyName"], tags_of(pair)))
            for one in self._pages("describe_security_groups", "SecurityGroups", only):
                found.append(Resource("security-group", one["GroupId"], tags_of(one)))
            for one in self._pages("describe_volumes", "Volumes", only):
                found.append(Resource("volume", one["VolumeId"], tags_of(one), one["State"]))
        return [one for one in found if one.state not in ("terminated", "shutting-down", "deleting", "in-use")]

    def _pages(self, operation: str, key: str, filters: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        for page in cast("Any", self.ec2).get_paginator(operation).paginate(Filters=filters):
            yield from page[key]

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
            else:
                raise CloudError(f"{resource.kind} {resource.id}: nothing here knows how to remove it")


@dataclass(frozen=True)
class Resource:
    """One thing in the cloud. attached: temporary key pairs and security groups that a Packer builder came with."""

    kind: str
    id: str
    tags: Mapping[str, str]
    state: str = ""
    attached: tuple[tuple[str, str], ...] = ()


def _instance_resource(found: Mapping[str, Any]) -> Resource:
    # Packer names what it makes for one build packer_<uuid>; other groups and keys belong to somebody.
    groups = [
        ("security-group", one["GroupId"])
        for one in found.get("SecurityGroups", [])
        if one["GroupName"].startswith("packer_")
    ]
    key = found.get("KeyName", "")
    keys = [("key-pair", key)] if key.startswith(("packer_", "gpu-ami-")) else []
    return Resource("instance", found["InstanceId"], tags_of(found), found["State"]["Name"], tuple(keys + groups))
