"""Publishes a release: looks at every region, decides the steps, carries them out phase by phase.

A region that fails stops there; the others go on. `latest` moves nowhere unless every region has come so far.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from gpu_ami.cloud import Cloud, Place
from gpu_ami.errors import CloudError, GpuAmiError
from gpu_ami.progress import Progress
from gpu_ami.publish import observation, steps
from gpu_ami.publish.execution import Execution
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.record import DONE, FAILED, PUBLICATION_FILE, Record, RegionRecord
from gpu_ami.publish.release import Release, read_release
from gpu_ami.publish.steps import Step

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
            work.append(_look(place, release, request.policy, where, now, progress))
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
    place: Place, release: Release, policy: ReleasePolicy, where: RegionPolicy, now: datetime, progress: Progress
) -> Work:
    """A region's steps; the error where it could not be looked at, or contradicts the policy."""
    record = RegionRecord(where.region)
    cloud = observation.cloud_of(place, where.region)
    try:
        view = observation.observe(cloud, release, policy, where, now)
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
