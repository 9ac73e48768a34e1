"""A builder of a plan: Packer run in a place, wherever there is capacity, until its image is complete.

In the local region the builder is a booted machine or a sandbox of this host, which is several times as fast.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from gpu_ami.build import packer
from gpu_ami.cloud import Cloud, Launch, RootVolume, amis, aws_errors, capacity, key_name, login, preflight, runs
from gpu_ami.errors import BuildError, CloudError, GpuAmiError
from gpu_ami.plan import Plan, cost, resolve_source_ami, system_packages
from gpu_ami.progress import Progress
from validator.plan_document import root_device

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef

    from gpu_ami.recipes import PlanDocument

_RUNNING_SECONDS = 600.0
_ENDED = ("shutting-down", "terminated", "stopping", "stopped")
# As in packer/source.pkr.hcl: terminates the builder if this process is killed, and leaves no file in the image.
_DEAD_MAN = """\
#!/bin/sh
systemd-run --quiet --unit=gpu-ami-dead-man --on-active={minutes}m systemctl poweroff
"""
Provision = Callable[[Mapping[str, str]], packer.Made]


@dataclass(frozen=True)
class LaunchedBuilder:
    """source_ami: what it starts from. provision: runs Packer with these variables on the builder.

    on_instance: gets its id. seconds_left: of the build.
    """

    plan: Plan
    cloud: Cloud
    run: runs.Run
    source_ami: str
    provision: Provision
    on_instance: Callable[[str], object]
    seconds_left: Callable[[], float]

    def make(self, instance_type: str, way: capacity.Way, subnet_id: str, variables: Mapping[str, str]) -> packer.Made:
        """The AMI of a new builder. variables: of the template. CapacityError: none, or EC2 took it away."""
        tags = self._tags(variables)
        with ExitStack() as stack:
            key = stack.enter_context(login.temporary_key(self.cloud, self.run, tags, suffix="-builder"))
            instance_id = self.cloud.launch_in(self._launch(instance_type, key, tags, variables), way, subnet_id)
            stack.enter_context(login.removed_after(self.run, lambda: self.cloud.terminate([instance_id])))
            self.on_instance(instance_id)
            instance = self.cloud.persistent(lambda: self.cloud.instance(instance_id))
            own = {
                "ssh_host": login.address(instance, self.cloud.place.login.ssh_interface),
                "ssh_private_key_file": str(self.run.key_file),
            }
            with self._withdrawal(instance_id):
                made = self.provision({**variables, **own})
                ami = self._image(instance_id, made)
        return dataclasses.replace(made, ami=ami, region=self.cloud.place.region)

    def _launch(self, instance_type: str, key: str, tags: Mapping[str, str], variables: Mapping[str, str]) -> Launch:
        document = self.plan.document
        root = variables.get("root_device_name") or root_device(document["os"])
        volume = RootVolume(root, document["build"]["root_volume_gib"], self.cloud.place.kms_key_id or "")
        minutes = int(runs.LIFETIME.total_seconds() // 60)
        return Launch(
            self.source_ami, instance_type, key, tags, _DEAD_MAN.format(minutes=minutes),
            pending_seconds=_RUNNING_SECONDS, root_volume=volume,
            on_leftover=lambda _: runs.leave_behind(self.run.folder),
        )  # fmt: skip

    def _tags(self, variables: Mapping[str, str]) -> dict[str, str]:
        """The builder's, as the template has them (`builder_tags`)."""
        layer = variables.get("layer", "")
        own = (
            self.run.tags() | {"gpu-ami:layer": layer, "gpu-ami:layer-digest": variables.get("layer_digest", "")}
            if layer
            else self.run.tags(recipe=self.plan.image, plan_digest=self.plan.digest)
        )
        tags = {**self.cloud.place.tags, **own, **json.loads(variables.get("builder_tags", "{}"))}
        name = f"gpu-ami {self.plan.image} {self.run.id} builder"
        return {**tags, "Name": name, runs.TAG_EXPIRES: self.run.expiry()}

    @contextmanager
    def _withdrawal(self, instance_id: str) -> Iterator[None]:
        """Where EC2 ended the builder in the block, that is the error: a Spot interruption is a lack of capacity."""
        try:
            yield
        except GpuAmiError as error:
            try:
                instance = self.cloud.persistent(lambda: self.cloud.instance(instance_id))
            except GpuAmiError:
                raise error from None
            state, why = instance["State"]["Name"], instance.get("StateReason", {})
            if state not in _ENDED or why.get("Code", "").startswith("Client."):
                raise
            ended = aws_errors.from_ended_instance(f"{instance_id}, the builder, is {state}", instance)
            ended.details = (*ended.details, error.message)
            raise ended from error

    def _image(self, instance_id: str, made: packer.Made) -> str:
        """The AMI with the name and the tags that the template computed."""
        data: Any = made.record.get("custom_data")
        try:
            name = str(data["image_name"])
            tags = {str(key): str(value) for key, value in json.loads(data["image_tags"]).items()}
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            raise BuildError(
                f"Packer's manifest does not name the image: {data!r}", hint="is packer/launched complete?"
            ) from error
        left = max(60.0, self.seconds_left())
        return amis.create(
            self.cloud, instance_id, name, tags, self.run.expiry(), timeout=left,
            on_leftover=lambda: runs.leave_behind(self.run.folder),
        )  # fmt: skip


SANDBOX_TAGS = {"gpu-ami:machine": "sandbox"}  # localregion/machines/factory.py
# Messages of Ansible's modules apt and dnf.
_NO_PACKAGE = re.compile(
    r"No package matching|No package .+ available|Unable to locate package|Failed to install some of"
)
_NO_LOGIN = "Timeout waiting for SSH"  # Packer's message
# Waits after which Packer is started again where AWS throttled a call that Packer does not retry.
THROTTLED_SECONDS = (5.0, 15.0, 45.0)


@dataclass
class Builder:
    """Makes images of a plan whose files are in `folder`. root: of template, playbooks and roles.

    seconds: for all images together, each at most packer.BUILD_SECONDS. attempts: to launch instances, so far.
    machines: for how long builders ran, by instance type.
    """

    plan: Plan
    folder: Path
    cloud: Cloud
    run: runs.Run
    root: Path
    progress: Progress
    seconds: float = packer.BUILD_SECONDS
    attempts: list[capacity.Attempt] = field(default_factory=list)
    machines: list[cost.MachineTime] = field(default_factory=list)
    _way: capacity.Way = field(default_factory=capacity.Way)
    _instances: list[str] = field(default_factory=list)
    started: float = field(default_factory=time.monotonic)

    def make(
        self, variables: Mapping[str, str], description: str, records: Path | None = None
    ) -> tuple[packer.Made, ImageTypeDef]:
        """Runs Packer once. variables: override the plan's. records: folder of manifest and log, if another.

        BuildError: Packer or Ansible failed. CapacityError, CloudError: AWS refused a call.
        """
        place, document = self.cloud.place, self.plan.document
        if image_id := variables.get("source_ami"):
            place.expect_launch(image_id)
        planned = document["build"]["instance_type"]
        types = capacity.builder_types(place, planned, document["architecture"])
        ways = {name: capacity.ways_of_builder(place, name, self.cloud.is_open) for name in types}

        def search_of(name: str) -> capacity.Search:
            search = self.cloud.search(name, ways[name])
            search.place = replace(
                place, capacity=replace(place.capacity, minutes=0)
            )  # all types are tried in each round
            search.on_attempt = self._note_attempt
            return search

        def build_in(name: str, way: capacity.Way, subnet_id: str) -> packer.Made:
            self._way = way
            launched = {"subnet_id": subnet_id} if place.network.subnet_ids else {}
            launched |= {} if name == planned else {"instance_type": name}
            with self._ingress_on_silence(), self._timed(name):
                if capacity.is_of_packer(way, self.cloud.is_open):
                    asked = {**self._security_groups(), **self._tags(), **variables, **launched}
                    return self._run_packer(asked, records)
                return self._launched(variables, records).make(name, way, subnet_id, {**self._tags(), **variables})

        made = capacity.search_types(types, search_of, build_in, place.capacity.minutes)
        with runs.recording(self.run, made.ami):
            for (
                instance
            ) in self._instances:  # Packer has terminated it; after a failure, the schedule ends what is left
                self.cloud.forget_end(instance)
            self._instances.clear()
            return made, self._complete(made.ami, description)

    def _note_attempt(self, attempt: capacity.Attempt) -> None:
        self.attempts.append(attempt)
        if attempt.answer != capacity.LAUNCHED:
            self.progress.note(str(attempt))

    @contextmanager
    def _timed(self, instance_type: str) -> Iterator[None]:
        """Adds the time of a builder to `machines`, if one was launched in the block."""
        had, started = len(self._instances), time.monotonic()
        try:
            yield
        finally:
            if len(self._instances) > had:
                self.machines.append(cost.MachineTime(instance_type, time.monotonic() - started))

    def require_launch(self, source_ami: str, program: packer.Packer) -> None:
        """CloudError before Packer starts where EC2 would refuse the builder, such as one without IMDSv2 (dry run)."""
        if not self.cloud.place.answers_preflight:
            return

        def source(cloud: Cloud, document: PlanDocument) -> Mapping[str, str]:
            return {"id": source_ami} if source_ami else resolve_source_ami(cloud, document)

        findings = preflight.examine_builder(
            self.cloud, self.plan.document, source, sets_imds_v2=lambda: program.has_plugins
        )
        for finding in findings:
            if finding.level is preflight.Level.WARNING:
                self.progress.note(str(finding))
        preflight.require(findings)

    def _launched(self, variables: Mapping[str, str], records: Path | None) -> LaunchedBuilder:
        """The builder that gpu-ami launches; Packer provisions it."""
        source = variables.get("source_ami") or resolve_source_ami(self.cloud, self.plan.document)["id"]

        def provision(given: Mapping[str, str]) -> packer.Made:
            return self._start_packer(given, records, packer.LAUNCHED)

        return LaunchedBuilder(
            self.plan, self.cloud, self.run, source, provision, self._on_launched, self._seconds_left
        )

    def _on_launched(self, instance_id: str) -> None:
        self._instances.append(instance_id)
        self.run.note_builder(instance_id)

    def _seconds_left(self) -> float:
        return min(self.seconds - (time.monotonic() - self.started), packer.BUILD_SECONDS)

    def _run_packer(self, variables: Mapping[str, str], records: Path | None) -> packer.Made:
        for seconds in THROTTLED_SECONDS:
            had = len(self._instances)
            try:
                return self._start_packer(variables, records)
            except CloudError as error:
                if len(self._instances) > had or not aws_errors.may_pass(error):
                    raise
                self.progress.note(f"{error.message} before Packer had a builder: again in {seconds:.0f} s")
                time.sleep(seconds)
        return self._start_packer(variables, records)

    def _start_packer(
        self, variables: Mapping[str, str], records: Path | None, template: str | None = None
    ) -> packer.Made:
        dry_run = functools.partial(self.require_launch, variables.get("source_ami", ""))
        packer_run = packer.PackerRun(
            self.root / "packer",
            self.folder,
            self.cloud.place,
            run_id=self.run.id,
            expires=self.run.expiry(),
            key_name=f"{key_name(self.run.id)}-builder",
            progress=self.progress,
            on_builder=self._on_instance,
            before_launch=None if template else dry_run,
            timeout=max(1.0, self._seconds_left()),
            variables=variables,
            records=records,
            template=template,
        )
        try:
            with nullcontext() if template else self._ended_by_packer():
                return packer.build(packer_run)
        except BuildError as error:
            note = system_packages(self.plan.document, self.cloud.place) if _NO_PACKAGE.search(error.message) else ""
            if note:
                text = f"{error.message} ({note}; a role installs them with update_cache: true)"
                raise BuildError(text, details=error.details, hint=error.hint) from error
            raise

    @contextmanager
    def _ended_by_packer(self) -> Iterator[None]:
        """Keeps the run's record for `sweep` where a Packer that failed left a builder, as after a crash."""
        try:
            yield
        except BaseException:
            if not all(map(self._has_ended, self._instances)):
                runs.leave_behind(self.run.folder)
            raise

    def _has_ended(self, instance_id: str) -> bool:
        try:
            return self.cloud.instance(instance_id)["State"]["Name"] in ("shutting-down", "terminated")
        except GpuAmiError as error:
            return aws_errors.is_not_found(error.code)

    def _on_instance(self, instance_id: str) -> None:
        self._instances.append(instance_id)
        self.run.note_builder(instance_id)
        self.cloud.end_at(instance_id, self.run.expiry())
        self.cloud.harden(instance_id)
        if self._way.reservation and self.cloud.reservation_of(instance_id) != self._way.reservation:
            self.progress.note(f"{instance_id} does not run in {self._way}: it is On-Demand, or in another reservation")

    def _security_groups(self) -> dict[str, str]:
        """Without groups, Packer would make one that is open to the world; the builder gets the VPC's default group,
        as the machines of a proof do.
        """
        if self.cloud.place.network.security_group_ids:
            return {}
        return {"security_group_ids": json.dumps([self.cloud.default_security_group()])}

    def _tags(self) -> dict[str, str]:
        """Tags of the builder alone: the local region is asked for a sandbox by one."""
        return {"builder_tags": json.dumps(SANDBOX_TAGS)} if self.cloud.place.machines.sandbox_builder else {}

    def _complete(self, ami: str, description: str) -> ImageTypeDef:
        """The new image as soon as EC2 lists it: described, and launched with IMDSv2 alone. BuildError: not listed."""
        self.cloud.created(ami)
        self.cloud.require_imds_v2(ami)
        self.cloud.describe_image(ami, description)
        image = self.cloud.wait_for_image(ami)
        if image is None:
            raise BuildError(f"{ami}, which Packer reported, does not appear in {self.cloud.place.region}")
        return image

    @contextmanager
    def _ingress_on_silence(self) -> Iterator[None]:
        """CloudError with the security groups where Packer's SSH login got no answer and they let nobody in."""
        cloud = self.cloud
        try:
            yield
        except BuildError as error:
            if _NO_LOGIN not in error.message or login.proxy_command(cloud.place, ""):
                raise
            try:
                ingress = cloud.ingress(cloud.place.network.security_group_ids or [cloud.default_security_group()])
            except GpuAmiError:
                raise error from None
            if not ingress.is_closed:
                raise BuildError(error.message, details=[*error.details, str(ingress)], hint=error.hint) from error
            text = f"Packer's SSH login to the builder timed out: {ingress}"
            raise CloudError(text, details=error.details, hint=ingress.remedy) from error


# In the certificate, among what is not proven.
NOT_BOOTED = (
    "the build on a booted machine: the roles ran in a sandbox of the build host (its kernel, no systemd, no"
    " cloud-init); --builder machine boots a builder"
)
