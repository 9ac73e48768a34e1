"""A builder of a plan: Packer run in a place, wherever there is capacity, until its image is complete.

In the local region the builder is a booted machine or a sandbox of this host, which is several times as fast.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING

from gpu_ami.build import packer
from gpu_ami.build.launched_builder import LaunchedBuilder
from gpu_ami.cloud import Cloud, aws_errors, capacity, key_name, login, preflight, runs
from gpu_ami.errors import BuildError, CloudError, GpuAmiError
from gpu_ami.plan import Plan, cost, resolve_source_ami
from gpu_ami.progress import Progress

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import ImageTypeDef

    from gpu_ami.recipes import PlanDocument


from gpu_ami.errors import UsageError

SANDBOX_TAGS = {"gpu-ami:machine": "sandbox"}  # localregion/machines/factory.py
_NO_LOGIN = "Timeout waiting for SSH"  # Packer's message
# Waits after which Packer is started again where AWS throttled a call that Packer does not retry.
_THROTTLED_SECONDS = (5.0, 15.0, 45.0)


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
    _started: float = field(default_factory=time.monotonic)

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
            search.place = replace(place, capacity_minutes=0)  # all types are tried in each round
            search.on_attempt = self._note_attempt
            return search

        def build_in(name: str, way: capacity.Way, subnet_id: str) -> packer.Made:
            self._way = way
            launched = {"subnet_id": subnet_id} if place.subnet_ids else {}
            launched |= {} if name == planned else {"instance_type": name}
            with self._ingress_on_silence(), self._timed(name):
                if capacity.is_of_packer(way, self.cloud.is_open):
                    asked = {**self._security_groups(), **self._tags(), **variables, **launched}
                    return self._run_packer(asked, records)
                return self._launched(variables, records).make(name, way, subnet_id, {**self._tags(), **variables})

        made = capacity.search_types(types, search_of, build_in, place.capacity_minutes)
        for instance in self._instances:  # Packer has terminated it; after a failure, the schedule ends what is left
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

    def _require_launch(self, source_ami: str, program: packer.Packer) -> None:
        """CloudError before Packer starts where EC2 would refuse the builder, such as one without IMDSv2 (dry run)."""
        if self.cloud.place.endpoint is not None:
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
        return min(self.seconds - (time.monotonic() - self._started), packer.BUILD_SECONDS)

    def _run_packer(self, variables: Mapping[str, str], records: Path | None) -> packer.Made:
        for seconds in _THROTTLED_SECONDS:
            had = len(self._instances)
            try:
                return self._start_packer(variables, records)
            except CloudError as error:
                if len(self._instances) > had or not aws_errors.is_throttled(error.code):
                    raise
                self.progress.note(f"{error.message} before Packer had a builder: again in {seconds:.0f} s")
                time.sleep(seconds)
        return self._start_packer(variables, records)

    def _start_packer(self, variables: Mapping[str, str], records: Path | None, template: str = "") -> packer.Made:
        dry_run = functools.partial(self._require_launch, variables.get("source_ami", ""))
        return packer.build(
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
        if self.cloud.place.security_group_ids:
            return {}
        return {"security_group_ids": json.dumps([self.cloud.default_security_group()])}

    def _tags(self) -> dict[str, str]:
        """Tags of the builder alone: the local region is asked for a sandbox by one."""
        return {"builder_tags": json.dumps(SANDBOX_TAGS)} if self.cloud.place.sandbox_builder else {}

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
                ingress = cloud.ingress(cloud.place.security_group_ids or [cloud.default_security_group()])
            except GpuAmiError:
                raise error from None
            if not ingress.is_closed:
                raise BuildError(error.message, details=[*error.details, str(ingress)], hint=error.hint) from error
            text = f"Packer's SSH login to the builder timed out: {ingress}"
            raise CloudError(text, details=error.details, hint=ingress.remedy) from error


AUTO, SANDBOX, MACHINE = "auto", "sandbox", "machine"
BUILDERS = (AUTO, SANDBOX, MACHINE)
# In the certificate, among what is not proven.
NOT_BOOTED = (
    "the build on a booted machine: the roles ran in a sandbox of the build host (its kernel, no systemd, no"
    " cloud-init); --builder machine boots a builder"
)


def choose(asked: str, conditions: str) -> tuple[bool, str]:
    """Whether the builder is a sandbox, and a line that says it. UsageError: one was asked for and is not possible."""
    if asked == MACHINE:
        return False, ""
    reason = _reason_against(conditions)
    if reason and asked == SANDBOX:
        raise UsageError(f"--builder sandbox: {reason}", hint="--builder machine boots a builder")
    if reason:
        return False, f"the builder is a booted machine, not a sandbox: {reason}"
    return True, "the builder is a sandbox of this host, not a booted machine (--builder machine)"


def _reason_against(conditions: str) -> str:
    if conditions:
        return f"conditions {conditions} are of booted machines"
    from localregion.sandbox import builder

    return builder.unusable()
