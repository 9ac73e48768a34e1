"""Publishes a release: looks at every region, decides the steps, carries them out phase by phase.

A region that fails stops there; the others go on. `latest` moves nowhere unless every region has come so far. Each step
can be repeated: what it did already is no error.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from gpu_ami.cloud import Cloud, Place, aws_errors, image_parameters, runs
from gpu_ami.errors import CloudError, ForeignAnswer, GpuAmiError, UsageError
from gpu_ami.progress import Progress
from gpu_ami.publish import sharing, steps
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.record import DONE, FAILED, PUBLICATION_FILE, ROLLBACK_FILE, Record, RegionRecord
from gpu_ami.publish.release import AVAILABLE, DEAD, SOON, Image, Release, as_time, images, read_release, snapshots
from gpu_ami.publish.steps import Step, common

if TYPE_CHECKING:
    from mypy_boto3_ec2.type_defs import LaunchPermissionTypeDef, TagSpecificationTypeDef


_PHASES = {
    steps.COPYING: "start the copies",
    steps.PREPARING: "images and pinned parameters",
    steps.POINTING: "latest",
    steps.RETIRING: "older images",
}


@dataclass
class Work:
    """A region with its record, and what carries out its steps; None where it could not be looked at."""

    record: RegionRecord
    execution: Execution | None = None


@dataclass(frozen=True)
class Request:
    """What is published where. image: its description in the record. folder: of the record, None for a dry run."""

    ami: str
    recipe: str
    image: Mapping[str, str]
    policy: ReleasePolicy
    policy_sha256: str
    folder: Path | None


def publish(place: Place, request: Request, progress: Progress) -> Record:
    """Publishes an image, or, without a folder for the record, says what would be done. UsageError, CloudError."""
    now = datetime.now(UTC)
    release = read_release(Cloud(place), request.ami, request.recipe)
    file = request.folder / PUBLICATION_FILE if request.folder else None
    image = dict(request.image) | {"name": release.image.name, "version": release.version}
    work = []
    with progress.stage(f"look at {len(request.policy.regions)} regions"):
        for number, where in enumerate(request.policy.regions, 1):
            progress.update(where.region, step=number, total=len(request.policy.regions))
            work.append(_look(place, release, request.policy, where, now, progress=progress))
    record = Record("publish", image, request.policy_sha256, [one.record for one in work], file)
    if file is not None and not _is_up_to_date(record, file):
        record.resume()
        carry_out(work, record, progress)
    return record


def _is_up_to_date(record: Record, file: Path) -> bool:
    """Whether nothing is to be done and the record says so already."""
    from gpu_ami.files import read_json

    before = read_json(file) or {}
    return record.is_complete and before.get("state") == "published" and before.get("image") == record.image


def _look(
    place: Place, release: Release, policy: ReleasePolicy, where: RegionPolicy, now: datetime, *, progress: Progress
) -> Work:
    """A region's steps; the error where it could not be looked at, or contradicts the policy."""
    record = RegionRecord(where.region)
    cloud = steps.cloud_of(place, where.region)
    try:
        view = cloud.persistent(lambda: steps.observe(cloud, release, policy, where, now))
        record.ami = view.image.id if view.image else ""
        record.parameters = {name: row.value for name, row in sorted(view.parameters.items())}
        record.notices = list(steps.notices(policy, view, now))
        if wrong := list(steps.contradictions(release, policy, view)):
            raise CloudError(f"{where.region}: SSM parameters contradict the policy", details=wrong)
        record.expect(steps.plan(release, policy, view, now))
    except GpuAmiError as error:
        record.fail(error)
        return Work(record)
    return Work(record, Execution(cloud, release, policy, progress, record.ami))


def carry_out(work: Sequence[Work], record: Record, progress: Progress) -> None:
    """All steps, phase by phase; the record is written after each. KeyboardInterrupt leaves it behind, too."""
    record.write()
    try:
        for phase, title in _PHASES.items():
            if phase >= steps.POINTING and record.failed:
                break
            _carry_out_phase(work, phase, title, record.write, progress)
    except BaseException:
        record.is_interrupted = True
        raise
    finally:
        record.write()


def _carry_out_phase(
    work: Sequence[Work], phase: int, title: str, written: Callable[[], None], progress: Progress
) -> None:
    if not any(step.phase == phase for one in work for step in one.record.steps):
        return
    with progress.stage(title):
        for one in work:
            for index, step in enumerate(one.record.steps):
                if step.phase != phase or one.execution is None or one.record.error is not None:
                    continue
                _carry_out_step(one.record, one.execution, index, step, progress)
                written()


def _carry_out_step(record: RegionRecord, execution: Execution, index: int, step: Step, progress: Progress) -> None:
    try:
        with progress.stage(f"{record.region}: {step.text}"):
            execution.carry_out(step)
    except GpuAmiError as error:
        record.outcomes[index] = FAILED
        record.fail(error)
        return
    record.outcomes[index] = DONE
    record.ami = execution.ami
    if step.name in ("pin", "latest"):
        record.parameters[step.values[0]] = step.ami or execution.ami


PREVIOUS = "previous"


@dataclass(frozen=True)
class RollbackRequest:
    """to: a version (the AMI's name), an AMI, or `previous`. folder: of the record, None for a dry run."""

    recipe: str
    to: str
    policy: ReleasePolicy
    policy_sha256: str
    folder: Path | None


def roll_back(place: Place, request: RollbackRequest, progress: Progress) -> Record:
    """Rolls back, or, without a folder for the record, says what would be done. UsageError, CloudError."""
    policy = request.policy
    if not policy.latest:
        hint = "a rollback moves the parameter PREFIX/latest: set ssm: {prefix: …} in the policy"
        raise UsageError("the policy has no SSM parameters", hint=hint)
    clouds = [steps.cloud_of(place, where.region) for where in policy.regions]
    with progress.stage(f"look at {len(clouds)} regions"):
        version = _version(clouds, request)
        work = [_look_back(cloud, request, version, progress) for cloud in clouds]
    image = {"ami": work[0].record.ami, "name": version, "version": version, "recipe": request.recipe}
    file = request.folder / ROLLBACK_FILE if request.folder else None
    record = Record("rollback", image, request.policy_sha256, [one.record for one in work], file)
    if file is not None:
        carry_out(work, record, progress)
    return record


def _published(cloud: Cloud, recipe: str) -> list[Image]:
    """The recipe's published images, the newest first."""
    found = [one for one in images(cloud, f"tag:{runs.TAG_RECIPE}", [recipe]) if one.published]
    return sorted(found, key=lambda one: (one.published, one.id), reverse=True)


def _version(clouds: Sequence[Cloud], request: RollbackRequest) -> str:
    """The version that is meant, which is the same in all regions. UsageError: there is none."""
    found = [one for cloud in clouds for one in _published(cloud, request.recipe)]
    if request.to == PREVIOUS:
        own = _published(clouds[0], request.recipe)
        latest = image_parameters.read(clouds[0], [request.policy.latest]).get(request.policy.latest)
        ids = [one.id for one in own]
        position = ids.index(latest.value) + 1 if latest and latest.value in ids else len(ids)
        versions = [one.version for one in own[position:]]
    else:
        versions = [one.version for one in found if request.to in (one.version, one.id, one.name)]
    if not versions:
        known = ", ".join(dict.fromkeys(one.version for one in found)) or "none"
        place = clouds[0].place.region
        before = f"before the one that {request.policy.latest} names" if request.to == PREVIOUS else request.to
        raise UsageError(
            f"{request.recipe}: no published image {before} in {place}",
            details=[f"published: {known}"],
            hint="--to takes a version, an AMI or `previous`",
        )
    return versions[0]


def _look_back(cloud: Cloud, request: RollbackRequest, version: str, progress: Progress) -> Work:
    """The steps of a region; the error where the version is not there."""
    record, policy = RegionRecord(cloud.place.region), request.policy
    try:
        found = [one for one in _published(cloud, request.recipe) if one.version == version]
        if not found or found[0].state != AVAILABLE:
            state = f"is {found[0].state}" if found else "is not published"
            hint = "name a version that all regions have, or publish this one there again"
            raise CloudError(f"{version} {state} in {record.region}", hint=hint)
        image = found[0]
        record.ami = image.id
        current = image_parameters.read(cloud, [policy.latest])
        record.parameters = {name: row.value for name, row in current.items()}
        record.expect(_steps(image, policy, record.parameters.get(policy.latest, "")))
    except GpuAmiError as error:
        record.fail(error)
        return Work(record)
    release = Release(image, record.region, request.recipe, {}, {}, is_encrypted=False)
    return Work(record, Execution(cloud, release, policy, progress, image.id))


def _steps(image: Image, policy: ReleasePolicy, latest: str) -> list[Step]:
    rows = []
    since = as_time(image.deprecated_at)
    if since is not None and since <= datetime.now(UTC):
        text = f"take back the deprecation of {image.id}"
        rows.append(Step(steps.PREPARING, "undeprecate", text, image.id))
    if latest != image.id:
        before = f", now {latest}" if latest else ""
        text = f"point {policy.latest} to {image.id} ({image.name}){before}"
        rows.append(Step(steps.POINTING, "latest", text, image.id, (policy.latest,)))
    return rows


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
        self.cloud.repeatable([self.ami], lambda: self._changes[step.name](step))

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
        self.cloud.created(self.ami)  # the servers that get the next calls may know it later

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
                text = "it no longer exists: was it deregistered? CopyImage returns the same AMI until the day ends"
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
        if any(image.is_protected for image in images(self.cloud, "image-id", [step.ami])):
            with aws_errors.translated(f"removing the deregistration protection of {step.ami} in {self.region}"):
                self.cloud.ec2.disable_image_deregistration_protection(ImageId=step.ami)
        if step.values[0]:
            image_parameters.delete(self.cloud, step.values[0])
        self._deregister(step.ami)

    def _deregister(self, ami: str) -> None:
        try:
            with aws_errors.translated(f"deregistering {ami} in {self.region}"):
                answer = self.cloud.ec2.deregister_image(ImageId=ami, DeleteAssociatedSnapshots=True)
        except CloudError as error:
            if not aws_errors.is_gone(error.code):
                raise
            self.progress.note(f"{ami} in {self.region} is gone already; `gpu-ami sweep` looks for its snapshots")
            return
        kept = [row for row in answer.get("DeleteSnapshotResults", []) if row.get("ReturnCode") != "success"]
        for row in kept:
            self.progress.note(f"{row.get('SnapshotId')} of {ami} is not deleted: {row.get('ReturnCode')}")
