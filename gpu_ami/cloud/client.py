"""Calls to EC2: launch, watch and terminate instances, read images.

Everything is tagged by the call that creates it. The same code runs against AWS and against the local region: a place
differs in its endpoint, never in a branch here.
"""

from __future__ import annotations

import base64
import contextlib
import functools
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar, cast

from gpu_ami.cloud import aws_errors, capacity, launches, runs
from gpu_ami.cloud.launches import Launch, request, tag_list
from gpu_ami.cloud.security_groups import Ingress
from gpu_ami.errors import CapacityError, CloudError, GpuAmiError, UsageError
from validator import aws
from validator.deadline import limit_requests

if TYPE_CHECKING:
    from mypy_boto3_ec2 import EC2Client
    from mypy_boto3_ec2.type_defs import (
        FilterTypeDef,
        ImageTypeDef,
        InstanceTypeDef,
        RunInstancesRequestTypeDef,
        SecurityGroupTypeDef,
    )

    from gpu_ami.cloud.place import Place

POLL_SECONDS = 1.0
OUTAGE_SECONDS = 120.0  # that launching and ending instances outlast
SAID_AGAIN_SECONDS = 30.0  # between two lines about the same outage
_ALIVE = ("pending", "running", "stopping", "stopped")
_FORMER_STATE = {"IncorrectInstanceState", "IncorrectState"}
_SPOT_STOP = "a Spot Instance of a one-time request cannot be stopped"


_Answer = TypeVar("_Answer")
_translated = aws_errors.translated


def tags_of(resource: Mapping[str, object]) -> dict[str, str]:
    """Tags of any resource that an AWS API describes."""
    tags = resource.get("Tags")
    return {tag["Key"]: tag["Value"] for tag in tags} if isinstance(tags, list) else {}


@functools.cache
def _service_descriptions() -> Any:
    """What reads botocore's descriptions of services, of several megabytes each: one for all sessions."""
    import botocore.session

    return botocore.session.Session().get_component("data_loader")


def preload() -> None:
    """Reads what a client of EC2 takes a third of a second to read, while something else is waited for."""
    import boto3  # noqa: F401

    _service_descriptions().load_service_model("ec2", "service-2")
    _service_descriptions().load_data("endpoints")


class Cloud:
    """EC2 in one place. Errors: CloudError, CapacityError, UsageError (credentials).

    say: gets a line while an outage of AWS is waited for.
    """

    def __init__(self, place: Place, say: Callable[[str], object] = lambda _: None) -> None:
        self.place, self.say = place, say
        self._outage_said = float("-inf")  # time.monotonic()
        self._clients: dict[str, Any] = {}
        self._created: dict[str, float] = {}  # id → when this object created it
        self._ways: dict[str, str] = {}  # instance → capacity.Way.kind
        self._zones: dict[str, str] = {}  # subnet or reservation → Availability Zone

    @functools.cached_property
    def ec2(self) -> EC2Client:
        with _translated("opening a session"):
            return cast("EC2Client", self.client("ec2"))

    def session(self) -> Any:
        """A boto3 session of this place's region and credentials."""
        import boto3

        shared = aws.session()
        shared.register_component("data_loader", _service_descriptions())
        keys = self.place.api.credentials
        return boto3.Session(
            botocore_session=shared,
            profile_name=self.place.api.profile or None,
            region_name=self.place.region,
            aws_access_key_id=keys.access_key_id if keys else None,
            aws_secret_access_key=keys.secret_access_key if keys else None,
            aws_session_token=(keys.session_token or None) if keys else None,
        )

    def client(self, service: str) -> Any:
        """A boto3 client of this place's region, endpoint and credentials; one a service.

        UsageError: the caller's settings lead to an endpoint that is not AWS's.
        """
        from botocore.config import Config

        if service in self._clients:
            return self._clients[service]
        # Transport errors and throttling are retried here and nowhere else.
        config = Config(retries={"mode": "standard", "total_max_attempts": 6}, connect_timeout=10, read_timeout=60)
        client = self.session().client(service, endpoint_url=self.place.api.endpoint or None, config=config)
        if not self.place.api.endpoint and (url := aws.foreign_endpoint(client)):
            raise UsageError(f"{self.place.name}: {url} is not AWS's API of {service}", hint=aws.ENDPOINT_ADVICE)
        client.meta.events.register("before-send", aws_errors.check_limit)
        client.meta.events.register("before-parse.ec2", aws_errors.retry_empty)
        client.meta.events.register("after-call", aws_errors.check_origin)
        limit_requests(client)
        return self._clients.setdefault(service, client)

    def import_key(self, name: str, public_key: str, tags: Mapping[str, str]) -> None:
        try:
            with _translated(f"importing key pair {name}"):
                self.ec2.import_key_pair(
                    KeyName=name,
                    PublicKeyMaterial=public_key.encode(),
                    TagSpecifications=[{"ResourceType": "key-pair", "Tags": tag_list(tags)}],
                )
        except CloudError as error:
            if error.code != "InvalidKeyPair.Duplicate" or not aws_errors.was_repeated(error):
                raise
        self.created(name)

    def delete_key(self, name: str) -> None:
        with _translated(f"deleting key pair {name}"):
            self.ec2.delete_key_pair(KeyName=name)

    def launch(self, launch: Launch) -> str:
        """Starts one instance and returns its id. IMDSv2 only; shut down from inside means terminated.

        CapacityError names every attempt in the place's subnets and ways.
        """
        return self.launch_all(launch)[0]

    def launch_all(self, launch: Launch) -> list[str]:
        """As `launch`, for `launch.count` instances of one call: the ids of all of them, or an error and none."""
        search = self.search(launch.instance_type, capacity.ways_of(self.place, launch.instance_type))
        search.on_attempt = launch.on_attempt
        if launch.cancelled:
            search.wait = launch.cancelled.wait
        return search.run(lambda way, subnet_id: self._launch(launch, way, subnet_id))

    def launch_in(self, launch: Launch, way: capacity.Way, subnet_id: str) -> str:
        """One attempt to start one instance, in this way and subnet; its id. CapacityError: there is none."""
        return self._launch(launch, way, subnet_id)[0]

    def launched_at(self, instance_id: str) -> float:
        """When this object launched an instance (time.monotonic()); now for any other."""
        return self._created.get(instance_id, time.monotonic())

    def search(self, instance_type: str, ways: Sequence[capacity.Way]) -> capacity.Search:
        """A search for capacity in this place's subnets."""
        return capacity.Search(self.place, instance_type, ways, self.zone_of_subnet, self.zone_of_reservation)

    def cannot_stop(self, instance_id: str) -> str:
        """Why EC2 would not stop an instance that was launched here; "" where it would."""
        return _SPOT_STOP if self._ways.get(instance_id) == capacity.SPOT else ""

    def zone_of_subnet(self, subnet_id: str) -> str:
        """Availability Zone of a subnet; "" where it cannot be read."""
        if subnet_id not in self._zones:
            filters: list[FilterTypeDef] = [{"Name": "subnet-id", "Values": [subnet_id]}]
            with contextlib.suppress(CloudError), _translated(f"looking up {subnet_id}"):
                rows = self.ec2.describe_subnets(Filters=filters)["Subnets"]
                self._zones[subnet_id] = rows[0]["AvailabilityZone"] if rows else ""
        return self._zones.get(subnet_id, "")

    def zone_of_reservation(self, reservation: str) -> str:
        """Availability Zone of a Capacity Reservation; "" where it cannot be read."""
        if reservation not in self._zones:
            with contextlib.suppress(CloudError), _translated(f"looking up {reservation}"):
                rows = self.ec2.describe_capacity_reservations(CapacityReservationIds=[reservation])
                self._zones[reservation] = aws.first(rows["CapacityReservations"], "CapacityReservations")[
                    "AvailabilityZone"
                ]
        return self._zones.get(reservation, "")

    def is_open(self, reservation: str) -> bool:
        """Whether every matching launch in its zone uses a Capacity Reservation. False: it cannot be read."""
        with contextlib.suppress(CloudError), _translated(f"looking up {reservation}"):
            rows = self.ec2.describe_capacity_reservations(CapacityReservationIds=[reservation])
            return (
                aws.first(rows["CapacityReservations"], "CapacityReservations").get("InstanceMatchCriteria") == "open"
            )
        return False

    def reservation_of(self, instance_id: str) -> str:
        """Id of the Capacity Reservation that an instance runs in; "" for none."""
        return self.persistent(lambda: self.instance(instance_id)).get("CapacityReservationId", "")

    def _launch(self, launch: Launch, way: capacity.Way, subnet_id: str) -> list[str]:
        """One attempt: instances that are terminated again where one does not come as far as it is waited for."""
        asked = self.persistent(
            lambda: request(launch, self.place, way, subnet_id, self.ec2), lambda: launch.is_cancelled
        )
        asked["ClientToken"] = uuid.uuid4().hex  # EC2 answers a repeated call with the instances of the first
        known = [launch.key_name, launch.ami]
        may_run = (
            False  # of all calls of this attempt: the last one may be refused where an earlier one's answer was lost
        )

        def run_instances() -> list[str]:
            nonlocal may_run
            try:
                return self._run_instances(launch, asked)
            except GpuAmiError as error:
                may_run = aws_errors.may_have_happened(error) or (may_run and not aws_errors.settles(error))
                raise

        try:
            instance_ids = self.persistent(lambda: self._consistent(known, run_instances), lambda: launch.is_cancelled)
        except BaseException as error:
            if not isinstance(error, GpuAmiError) or may_run:
                self._take_back_unknown(launch, asked["ClientToken"], error)
            raise
        for instance_id in instance_ids:
            self.created(instance_id)
            self._ways[instance_id] = way.kind
        try:
            for instance_id in instance_ids:
                self.end_at(instance_id, launch.tags.get(runs.TAG_EXPIRES, ""))
            if launch.pending_seconds:
                self._wait_until_running(launch, instance_ids)
        except CapacityError as error:  # EC2 has ended the one that the error is of
            if len(instance_ids) == 1:
                self.forget_end(instance_ids[0])
            else:
                self._take_back(launch, instance_ids, error)
            raise
        except BaseException as error:
            self._take_back(launch, instance_ids, error)
            raise
        return instance_ids

    def _wait_until_running(self, launch: Launch, instance_ids: Sequence[str]) -> None:
        deadline = time.monotonic() + launch.pending_seconds
        for instance_id in instance_ids:
            left = max(0.0, deadline - time.monotonic())
            self.wait_for_state(instance_id, "running", left, lambda: launch.is_cancelled)

    def _take_back(self, launch: Launch, instance_ids: list[str], error: BaseException) -> None:
        """Terminates what a failed attempt has launched; the error then names what that could not do."""
        try:
            self.terminate(instance_ids)
        except GpuAmiError as refusal:
            launch.on_leftover(refusal)
            if isinstance(error, GpuAmiError):
                error.details = (*error.details, f"not removed: {refusal.message}")

    def _take_back_unknown(self, launch: Launch, token: str, error: BaseException) -> None:
        """Terminates what a call without an answer has launched; it is left for `sweep` where EC2 does not list it."""
        launched: list[str] = []
        try:
            instances = self._instances_of(launch.tags.get(runs.TAG_RUN, ""), *_ALIVE)
            launched = [instance["InstanceId"] for instance in instances if instance.get("ClientToken") == token]
            self.terminate(launched)
        except GpuAmiError:
            launched = []
        if len(launched) < launch.count:
            what = f"what EC2 may have launched ({launch.count} {launch.instance_type}): its answer was lost"
            launch.on_leftover(CloudError(what))
            if isinstance(error, GpuAmiError):
                error.details = (*error.details, f"not removed: {what}; `gpu-ami sweep` removes it")

    def _run_instances(self, launch: Launch, asked: RunInstancesRequestTypeDef) -> list[str]:
        with _translated(f"launching {launch.instance_type} from {launch.ami}"):
            instances = self.ec2.run_instances(**asked)["Instances"]
            if len(instances) < launch.count:
                raise aws.NotOfAws(f"expected {launch.count} instances, got {len(instances)}")
            return [instance["InstanceId"] for instance in instances[: launch.count]]

    def end_at(self, instance_id: str, expires: str) -> None:
        """Has AWS terminate the instance then, where the place has a role for it. expires: RFC 3339, UTC."""
        role = self.place.dead_man_role
        if role and expires:
            launches.arm_dead_man(self.client("scheduler"), role, instance_id, expires)

    def forget_end(self, instance_id: str) -> bool:
        """Takes that back for an instance that has been terminated. False: nothing was to be taken back."""
        return bool(self.place.dead_man_role) and launches.disarm_dead_man(self.client("scheduler"), instance_id)

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
                is_new = newest and time.monotonic() - newest < self.place.api.consistent_seconds
                if not (is_new and aws_errors.may_appear(error.code)):
                    raise
            time.sleep(POLL_SECONDS)

    def persistent(self, call: Callable[[], _Answer], cancelled: Callable[[], bool] = lambda: False) -> _Answer:
        """The call; again while it may succeed later: what has been waited for long, or costs money while it runs."""
        deadline = time.monotonic() + OUTAGE_SECONDS
        while True:
            try:
                return call()
            except CloudError as error:
                if not aws_errors.may_pass(error) or time.monotonic() >= deadline or cancelled():
                    raise
                self._say_outage(error, deadline)
            time.sleep(POLL_SECONDS)

    def repeatable(self, new: Sequence[str], call: Callable[[], _Answer]) -> _Answer:
        """The call, which does no harm twice, as `persistent`; also while AWS does not know what was created just now.

        new: ids that `created` got.
        """
        return self.persistent(lambda: self._consistent(new, call))

    def _say_outage(self, error: CloudError, deadline: float) -> None:
        """Says that a call is repeated, and until when; of many machines and calls, one line in a while."""
        now = time.monotonic()
        if now - self._outage_said >= SAID_AGAIN_SECONDS:
            self._outage_said = now
            self.say(f"{error.message}; trying again for up to {max(deadline - now, 0):.0f} s")

    def _settled(self, call: Callable[[], None]) -> None:
        """The call; again each second where the server that got it knows the former state of the instance alone."""
        deadline = time.monotonic() + self.place.api.consistent_seconds
        while True:
            try:
                return call()
            except CloudError as error:
                if error.code not in _FORMER_STATE or time.monotonic() >= deadline:
                    raise
            time.sleep(POLL_SECONDS)

    def instance(self, instance_id: str) -> InstanceTypeDef:
        """The instance as DescribeInstances has it. CloudError: there is none."""
        return self._consistent([instance_id], lambda: self._describe(instance_id))

    def _describe(self, instance_id: str) -> InstanceTypeDef:
        with _translated(f"describing {instance_id}"):
            reservations = self.ec2.describe_instances(InstanceIds=[instance_id])["Reservations"]
            instances = [instance for row in reservations for instance in row.get("Instances", [])]
            if any(not instance["State"]["Name"] for instance in instances):
                raise aws.NotOfAws("a state has no name")
        if not instances:
            code = "InvalidInstanceID.NotFound"  # an empty answer means the same
            raise aws_errors.from_code(f"describing {instance_id}", code, "DescribeInstances returned no instance")
        return instances[0]

    def ingress_of_instance(self, instance_id: str) -> Ingress:
        """Who may connect to the SSH port of an instance, through any of its interfaces."""
        instance = self.instance(instance_id)
        groups = [*instance.get("SecurityGroups", [])]
        groups += [group for card in instance.get("NetworkInterfaces", []) for group in card.get("Groups", [])]
        return self.ingress(list(dict.fromkeys(group["GroupId"] for group in groups)))

    def ingress(self, group_ids: Sequence[str]) -> Ingress:
        """Who may connect to the SSH port of an instance in these security groups; unknown where none is named."""
        groups = self.security_groups(group_ids) if group_ids else []
        with _translated(f"looking up {', '.join(group_ids)}"):  # an answer that lacks the rules is an error of its own
            return Ingress.of(groups, self.place.login.ssh_port)

    def security_groups(self, group_ids: Sequence[str]) -> list[SecurityGroupTypeDef]:
        """The groups of these ids that there are, as DescribeSecurityGroups has them."""
        with _translated(f"looking up {', '.join(group_ids)}"):
            named: list[FilterTypeDef] = [{"Name": "group-id", "Values": list(group_ids)}]
            return self.ec2.describe_security_groups(Filters=named)["SecurityGroups"]

    def shutting_down(self, run_id: str) -> list[str]:
        """Ids of the run's instances that were told to terminate and have not ended yet."""
        return self.instances_of(run_id, "shutting-down")

    def instances_of(self, run_id: str, *states: str) -> list[str]:
        """Ids of the run's instances in these states; EC2 lists terminated ones for about an hour."""
        return [instance["InstanceId"] for instance in self._instances_of(run_id, *states)]

    def _instances_of(self, run_id: str, *states: str) -> list[InstanceTypeDef]:
        only: list[FilterTypeDef] = [
            {"Name": f"tag:{runs.TAG_RUN}", "Values": [run_id]},
            {"Name": "instance-state-name", "Values": list(states)},
        ]
        with _translated(f"listing instances of run {run_id}"):
            pages = self.ec2.get_paginator("describe_instances").paginate(Filters=only)
            rows = [row for page in pages for row in page["Reservations"]]
            found = [instance for row in rows for instance in row["Instances"]]
            return list({instance["InstanceId"]: instance for instance in found}.values())  # a page may repeat one

    def wait_for_state(
        self, instance_id: str, expected: str, timeout: float, cancelled: Callable[[], bool] = lambda: False
    ) -> InstanceTypeDef:
        """Polls each second until the instance is in the `expected` state; a terminal state ends it with its reason."""
        deadline = time.monotonic() + timeout
        while True:
            instance = self._answer_or_none(instance_id, deadline)
            if instance is None:
                if cancelled():
                    raise CloudError(f"the wait for {instance_id} was cancelled")
                time.sleep(POLL_SECONDS)
                continue
            state = instance["State"]["Name"]
            if state == expected:
                return instance
            why = instance.get("StateReason", {})
            # A start that fails goes back to `stopped`; the reason of the stop before it is the user's (Client.…).
            failed = state == "stopped" and expected == "running" and why.get("Code", "").startswith("Server.")
            if failed or (state in ("terminated", "shutting-down") and expected != "terminated"):
                raise aws_errors.from_ended_instance(f"{instance_id} is {state}, expected {expected}", instance)
            if cancelled():
                raise CloudError(f"the wait for {instance_id} was cancelled")
            if time.monotonic() > deadline:
                raise CloudError(f"{instance_id} is {state} after {timeout:.0f} s, expected {expected}")
            time.sleep(POLL_SECONDS)

    def _answer_or_none(self, instance_id: str, deadline: float) -> InstanceTypeDef | None:
        """The instance; None where this poll may succeed later and there is time for another."""
        try:
            return self.instance(instance_id)
        except CloudError as error:
            if not aws_errors.may_pass(error) or time.monotonic() > deadline:
                raise
            self._say_outage(error, deadline)
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
        self.persistent(lambda: self._settled(lambda: self._stop(instance_id)))

    def _stop(self, instance_id: str) -> None:
        with _translated(f"stopping {instance_id}"):
            self.ec2.stop_instances(InstanceIds=[instance_id])

    def start(self, instance_id: str) -> None:
        """Orders StartInstances; on AWS the instance comes up on another host. CapacityError where there is none."""
        self.persistent(lambda: self._settled(lambda: self._start(instance_id)))

    def _start(self, instance_id: str) -> None:
        with _translated(f"starting {instance_id}"):
            self.ec2.start_instances(InstanceIds=[instance_id])

    def terminate(self, instance_ids: list[str]) -> None:
        """Orders TerminateInstances. EC2 refuses it for all where it has forgotten one, an hour after its end."""
        try:
            if instance_ids:
                self.persistent(lambda: self._consistent(instance_ids, lambda: self._terminate(instance_ids)))
        except CloudError as error:
            if len(instance_ids) == 1 or not aws_errors.is_not_found(error.code):
                raise
            self._terminate_each(instance_ids)
        for instance_id in instance_ids:
            self.forget_end(instance_id)

    def _terminate_each(self, instance_ids: list[str]) -> None:
        """One call for each; the first error, after all of them, but not that one is gone."""
        errors: list[CloudError] = []
        for instance_id in instance_ids:
            try:
                self.persistent(functools.partial(self._terminate, [instance_id]))
            except CloudError as error:
                errors += [] if aws_errors.is_not_found(error.code) else [error]
        if errors:
            raise errors[0]

    def _terminate(self, instance_ids: list[str]) -> None:
        with _translated(f"terminating {', '.join(instance_ids)}"):
            self.ec2.terminate_instances(InstanceIds=instance_ids)

    def image(self, ami: str) -> ImageTypeDef | None:
        """The image, or None where it is not there any more."""
        with _translated(f"describing {ami}"):
            only: list[FilterTypeDef] = [{"Name": "image-id", "Values": [ami]}]
            pages = self.ec2.get_paginator("describe_images").paginate(Filters=only)  # a first page may be empty
            return next((image for page in pages for image in page["Images"]), None)

    def require_imds_v2(self, ami: str) -> None:
        """Makes every launch from this image ask for IMDSv2 (ModifyImageAttribute)."""
        self.persistent(lambda: self._consistent([ami], lambda: self._require_imds_v2(ami)))

    def _require_imds_v2(self, ami: str) -> None:
        with _translated(f"requiring IMDSv2 on {ami}"):
            self.ec2.modify_image_attribute(ImageId=ami, ImdsSupport={"Value": "v2.0"})

    def describe_image(self, ami: str, text: str) -> None:
        """Sets an image's description (ModifyImageAttribute)."""
        self.persistent(lambda: self._consistent([ami], lambda: self._describe_image(ami, text)))

    def _describe_image(self, ami: str, text: str) -> None:
        with _translated(f"describing {ami}"):
            self.ec2.modify_image_attribute(ImageId=ami, Description={"Value": text})

    def wait_for_image(self, ami: str) -> ImageTypeDef | None:
        """The image as soon as DescribeImages knows it; None where it never does."""
        deadline = time.monotonic() + self.place.api.consistent_seconds
        while (image := self.persistent(lambda: self.image(ami))) is None and time.monotonic() < deadline:
            time.sleep(POLL_SECONDS)
        return image

    def harden(self, instance_id: str) -> None:
        """Makes a new instance ask for IMDSv2 (ModifyInstanceMetadataOptions): a builder of a Packer before 1.7."""
        self.created(instance_id)  # by Packer, just now
        self.wait_for_state(instance_id, "running", 300)  # EC2 refuses the call while the instance is pending
        self.persistent(
            lambda: self._settled(lambda: self._consistent([instance_id], lambda: self._require_tokens(instance_id)))
        )

    def _require_tokens(self, instance_id: str) -> None:
        with _translated(f"requiring IMDSv2 on {instance_id}"):
            self.ec2.modify_instance_metadata_options(InstanceId=instance_id, HttpTokens="required")

    def default_security_group(self) -> str:
        """Id of the default group of the place's VPC (without a subnet, the region's default VPC). UsageError: none."""
        hint = "set subnet_id and security_group_ids in the --where file"
        with _translated("looking up the default security group"):
            if self.place.network.subnet_id:
                wanted: list[FilterTypeDef] = [{"Name": "subnet-id", "Values": [self.place.network.subnet_id]}]
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
