"""A builder that gpu-ami launches, for what Packer cannot ask for: Spot, a reservation by its id, a Capacity Block.

Packer's null builder runs the same playbook on it (packer/launched), and its manifest hands over the name and the tags
of the AMI, which are the template's. RunInstances and CreateImage are those that `iam/` allows and `sweep` knows.
Sources: EC2 API reference, RunInstances and CreateImage (an instance of which an image is made is shut down and started
again, unless NoReboot is set), read 2026-11-25.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from gpu_ami.build import packer
from gpu_ami.cloud import Cloud, Launch, RootVolume, aws_errors, capacity, images, login, runs, temporary_keys
from gpu_ami.errors import BuildError, GpuAmiError
from gpu_ami.plan import root_device_name

if TYPE_CHECKING:
    from gpu_ami.plan import Plan

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
            key = stack.enter_context(temporary_keys.temporary_key(self.cloud, self.run, tags, suffix="-builder"))
            instance_id = self.cloud.launch_in(self._launch(instance_type, key, tags, variables), way, subnet_id)
            stack.callback(temporary_keys.clean_up, self.run, lambda: self.cloud.terminate([instance_id]), None)
            self.on_instance(instance_id)
            instance = self.cloud.instance(instance_id)
            own = {
                "ssh_host": login.address(instance, self.cloud.place.ssh_interface),
                "ssh_private_key_file": str(self.run.key_file),
            }
            with self._withdrawal(instance_id):
                made = self.provision({**variables, **own})
                ami = self._image(instance_id, made)
        return dataclasses.replace(made, ami=ami, region=self.cloud.place.region)

    def _launch(self, instance_type: str, key: str, tags: Mapping[str, str], variables: Mapping[str, str]) -> Launch:
        document = self.plan.document
        root = variables.get("root_device_name") or root_device_name(document["os"]["id"])
        volume = RootVolume(root, document["build"]["root_volume_gib"], self.cloud.place.kms_key_id or "")
        minutes = int(runs.LIFETIME.total_seconds() // 60)
        return Launch(
            self.source_ami, instance_type, key, tags, _DEAD_MAN.format(minutes=minutes),
            pending_seconds=_RUNNING_SECONDS, root_volume=volume,
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
                instance = self.cloud.instance(instance_id)
            except GpuAmiError:
                raise error from None
            state, why = instance["State"]["Name"], instance.get("StateReason", {})
            if state not in _ENDED or why.get("Code", "").startswith("Client."):
                raise
            text = f"{instance_id}, the builder, is {state}"
            ended = aws_errors.from_state_reason(text, why.get("Code", ""), why.get("Message", ""))
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
        return images.create(self.cloud, instance_id, name, tags, self.run.expiry(), left)
