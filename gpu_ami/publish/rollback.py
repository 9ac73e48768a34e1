"""Points `latest` at an image that was published before. Nothing is deleted; the image that it named stays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_ami.cloud import Cloud, Place, runs
from gpu_ami.errors import CloudError, GpuAmiError, UsageError
from gpu_ami.progress import Progress
from gpu_ami.publish import observation, parameters, steps
from gpu_ami.publish.execution import Execution
from gpu_ami.publish.policy import ReleasePolicy
from gpu_ami.publish.publication import Work, carry_out
from gpu_ami.publish.record import ROLLBACK_FILE, Record, RegionRecord
from gpu_ami.publish.release import AVAILABLE, Image, Release, as_time, images
from gpu_ami.publish.steps import Step

PREVIOUS = "previous"


@dataclass(frozen=True)
class Request:
    """to: a version (the AMI's name), an AMI, or `previous`. folder: of the record, None for a dry run."""

    recipe: str
    to: str
    policy: ReleasePolicy
    policy_sha256: str
    folder: Path | None


def roll_back(place: Place, request: Request, progress: Progress) -> Record:
    """Rolls back, or, without a folder for the record, says what would be done. UsageError, CloudError."""
    policy = request.policy
    if not policy.latest:
        hint = "a rollback moves the parameter PREFIX/latest: set ssm: {prefix: …} in the policy"
        raise UsageError("the policy has no SSM parameters", hint=hint)
    clouds = [observation.cloud_of(place, where.region) for where in policy.regions]
    with progress.stage(f"look at {len(clouds)} regions"):
        version = _version(clouds, request)
        work = [_look(cloud, request, version, progress) for cloud in clouds]
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


def _version(clouds: Sequence[Cloud], request: Request) -> str:
    """The version that is meant, which is the same in all regions. UsageError: there is none."""
    found = [one for cloud in clouds for one in _published(cloud, request.recipe)]
    if request.to == PREVIOUS:
        own = _published(clouds[0], request.recipe)
        latest = parameters.read(clouds[0], [request.policy.latest]).get(request.policy.latest)
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


def _look(cloud: Cloud, request: Request, version: str, progress: Progress) -> Work:
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
        current = parameters.read(cloud, [policy.latest])
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
