"""Carries out the steps of a region. Each step can be repeated: what it did already is no error."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, cast

from gpu_ami.cloud import Cloud, aws_errors, image_parameters
from gpu_ami.errors import CloudError, ForeignAnswer
from gpu_ami.progress import Progress
from gpu_ami.publish import sharing
from gpu_ami.publish.policy import ReleasePolicy
from gpu_ami.publish.release import AVAILABLE, DEAD, SOON, Image, Release, images, snapshots
from gpu_ami.publish.steps import Step, common

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import LaunchPermissionTypeDef, TagSpecificationTypeDef

LOOKS = 3  # DescribeImages may still answer `pending` after `available`: another server was asked
POLL_SECONDS = 10.0
COPY_SECONDS = 4 * 3600.0
APPEAR_SECONDS = 120.0


def as_list(tags: Mapping[str, str]) -> list[Any]:
    return [{"Key": key, "Value": value} for key, value in sorted(tags.items())]


@dataclass
class Execution:
    """One region. ami: the image there, "" until it is copied."""

    cloud: Cloud
    release: Release
    policy: ReleasePolicy
    progress: Progress
    ami: str = ""
    _changes: dict[str, Callable[[Step], None]] = field(init=False)

    def __post_init__(self) -> None:
        self._changes = {
            "copy": self._copy,
            "wait": self._wait,
            "tag": self._tag,
            "imds": lambda _: self.cloud.require_imds_v2(self.ami),
            "protect": self._protect,
            "deprecate": self._deprecate,
            "undeprecate": self._undeprecate,
            "share": self.share,
            "mark": lambda step: self._create_tags(self.ami, step.tags),
            "pin": self._pin,
            "latest": self._latest,
            "deregister": lambda step: self._deregister(step.ami),
            "retire": self._retire,
        }

    @property
    def region(self) -> str:
        return self.cloud.place.region

    def carry_out(self, step: Step) -> None:
        """CloudError: AWS refused it, or the result is not there."""
        self._changes[step.name](step)

    def image(self, ami: str = "") -> Image:
        """The image as DescribeImages has it. CloudError: it is not there."""
        found = images(self.cloud, "image-id", [ami or self.ami])
        if not found:
            raise CloudError(f"{ami or self.ami} is not in {self.region}")
        return found[0]

    def _copy(self, step: Step) -> None:
        key, *failed = step.values
        release = self.release
        tags: list[TagSpecificationTypeDef] = [{"ResourceType": "image", "Tags": as_list(release.tags_in(self.region))}]
        if shared := common(release):
            tags.append({"ResourceType": "snapshot", "Tags": as_list(shared)})
        encryption: Any = {"Encrypted": True, "KmsKeyId": key} if key else {}
        with aws_errors.translated(f"copying {release.image.id} to {self.region}"):
            self.ami = self.cloud.ec2.copy_image(
                SourceImageId=release.image.id,
                SourceRegion=release.region,
                Name=release.image.name,
                ClientToken=release.token(self.region, key, failed, datetime.now(UTC).date()),
                TagSpecifications=tags,
                **encryption,
            )["ImageId"]
        self.cloud.created(self.ami)

    def _wait(self, _step: Step) -> None:
        """Until the image was available LOOKS times in a row, with its snapshots."""
        began, looks = time.monotonic(), 0
        while looks < LOOKS:
            image = self._look(began)
            if image is not None and image.state in DEAD:
                hint = "run the same command again: it makes another copy and removes this one"
                details = [image.reason] if image.reason else []
                raise CloudError(f"{self.ami} in {self.region} is {image.state}", details=details, hint=hint)
            looks = looks + 1 if image is not None and image.state == AVAILABLE else 0
            waited = time.monotonic() - began
            state = image.state if image is not None else "not visible yet"
            self.progress.update(f"{self.ami} in {self.region} is {state}", step=looks, total=LOOKS)
            if waited > COPY_SECONDS:
                hint = "run the same command again: it goes on waiting"
                raise CloudError(f"{self.ami} in {self.region} is {state} after {waited:.0f} s", hint=hint)
            if looks < LOOKS:
                time.sleep(POLL_SECONDS)

    def _look(self, began: float) -> Image | None:
        """The image; None while it is not visible yet, or the look may succeed later."""
        try:
            return self.image()
        except ForeignAnswer:
            raise
        except CloudError as error:
            is_gone = not error.code and not aws_errors.may_pass(error)
            is_new = is_gone and time.monotonic() - began < APPEAR_SECONDS
            if is_new or aws_errors.may_pass(error):
                return None
            if is_gone:
                text = "CopyImage named it, and it is gone: was it deregistered? AWS answers the same copy for this day"
                raise CloudError(error.message, hint=text) from error
            raise

    def _tag(self, step: Step) -> None:
        resource = step.ami or self.image().snapshots.get(step.values[0], "")
        self._create_tags(resource, step.tags)

    def _create_tags(self, resource: str, tags: Mapping[str, str]) -> None:
        with aws_errors.translated(f"setting tags of {resource} in {self.region}"):
            self.cloud.ec2.create_tags(Resources=[resource], Tags=as_list(tags))

    def _protect(self, _step: Step) -> None:
        with aws_errors.translated(f"protecting {self.ami} from deregistration in {self.region}"):
            self.cloud.ec2.enable_image_deregistration_protection(ImageId=self.ami)

    def _deprecate(self, step: Step) -> None:
        ami, goal = step.ami or self.ami, datetime.fromisoformat(step.values[0])
        moment = max(goal, datetime.now(UTC) + SOON)
        with aws_errors.translated(f"setting the deprecation date of {ami} in {self.region}"):
            self.cloud.ec2.enable_image_deprecation(ImageId=ami, DeprecateAt=moment)

    def _undeprecate(self, step: Step) -> None:
        with aws_errors.translated(f"taking back the deprecation of {step.ami} in {self.region}"):
            self.cloud.ec2.disable_image_deprecation(ImageId=step.ami)

    def share(self, step: Step) -> None:
        """Shares the image, after a look at the keys that its snapshots have in the end."""
        keys = sorted({arn for _, arn in snapshots(self.cloud, self.image()).values() if arn})
        refused = list(sharing.refusals(self.policy, self.region, [sharing.read_key(self.cloud, arn) for arn in keys]))
        if refused:
            raise CloudError(f"{self.ami} in {self.region} cannot be shared as the policy says", details=refused)
        rows = cast("list[LaunchPermissionTypeDef]", [sharing.permission(one) for one in step.values])
        with aws_errors.translated(f"sharing {self.ami} in {self.region}"):
            self.cloud.ec2.modify_image_attribute(ImageId=self.ami, LaunchPermission={"Add": rows})

    def _pin(self, step: Step) -> None:
        image_parameters.write(self.cloud, step.values[0], self.ami, overwrite=False)

    def _latest(self, step: Step) -> None:
        image_parameters.write(self.cloud, step.values[0], step.ami or self.ami, overwrite=True)

    def _retire(self, step: Step) -> None:
        """The pinned parameter goes first: it never names an AMI that is gone."""
        if self.image(step.ami).is_protected:
            with aws_errors.translated(f"removing the deregistration protection of {step.ami} in {self.region}"):
                self.cloud.ec2.disable_image_deregistration_protection(ImageId=step.ami)
        if step.values[0]:
            image_parameters.delete(self.cloud, step.values[0])
        self._deregister(step.ami)

    def _deregister(self, ami: str) -> None:
        with aws_errors.translated(f"deregistering {ami} in {self.region}"):
            answer = self.cloud.ec2.deregister_image(ImageId=ami, DeleteAssociatedSnapshots=True)
        kept = [row for row in answer.get("DeleteSnapshotResults", []) if row.get("ReturnCode") != "success"]
        for row in kept:
            self.progress.note(f"{row.get('SnapshotId')} of {ami} is not deleted: {row.get('ReturnCode')}")
