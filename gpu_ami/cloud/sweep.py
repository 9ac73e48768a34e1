"""Removes what dead runs left behind, and nothing else.

A leftover carries our run tag and either its expiry has passed, or its run is registered on this machine for this place
and its process has ended. What a living run of this machine owns is never touched. A complete image is a product and
stays until its own expiry (`image_expires`; the tag is `never` without one), and while something uses it; its snapshots
go with it. One that its run
had not recorded when it died is none. Packer before
1.7 tags an image when it is complete: until then it is known by the builder that it was made of. Processes of this
machine that a dead run left (Packer, its plugins, Ansible) are ended first: they would go on creating things. Log
groups of proofs have no tags; the run's id is in their names. AWS may not list yet what a run made a moment before it
died: where one was alive a moment ago, all is looked for a second time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from gpu_ami import process
from gpu_ami.cloud import amis, aws_errors, ecs, launches, log_groups, placement_groups, resources, runs
from gpu_ami.cloud.client import Cloud
from gpu_ami.cloud.place import Place
from gpu_ami.cloud.resources import Resource
from gpu_ami.errors import CloudError
from gpu_ami.progress import Progress

_BUILDER = " builder"  # how a builder's Name ends (packer/source.pkr.hcl)
_ORDER = {"instance": 0, "image": 1}
_LISTED_APART: Mapping[str, Callable[[Cloud], list[Resource]]] = {
    "placement groups": lambda cloud: placement_groups.tagged(cloud, runs.TAG_RUN),
    "what runs left in ECS": ecs.left_of_runs,
}
_REMOVALS: Mapping[str, Callable[[Cloud, Resource], None]] = {
    placement_groups.KIND: lambda cloud, resource: placement_groups.delete(cloud, resource.id),
    **dict.fromkeys(ecs.KINDS, ecs.remove),
}


@dataclass(frozen=True)
class Swept:
    """One leftover. outcome: `removed`, `would be removed` or `not removed`; error: why it was not, else ""."""

    kind: str
    id: str
    run: str
    reason: str
    outcome: Annotated[str, ("removed", "would be removed", "not removed")]
    error: str = ""

    @property
    def text(self) -> str:
        """The outcome, with the error if there is one."""
        return f"{self.outcome}: {self.error}" if self.error else self.outcome


def why_leftover(
    tags: dict[str, str], records: Iterable[runs.Record], place: Place, *, complete_image: bool = False
) -> str:
    """Why a resource with these tags is a leftover; "" if it is not. complete_image: it, or a snapshot of one."""
    run = tags.get(runs.TAG_RUN, "")
    record = next((one for one in records if one.id == run), None)
    if record and record.alive:
        return ""
    if record and _is_of(record, place) and not complete_image:
        return "its run has died"
    return "expired" if run and runs.has_expired(tags.get(runs.TAG_EXPIRES, "")) else ""


def _is_of(record: runs.Record, place: Place) -> bool:
    return record.is_of(place.name, place.file)


def key_name(run_id: str) -> str:
    """Name of a run's temporary key pair; the builder's ends in -builder."""
    return f"gpu-ami-{run_id}"


def sweep_cloud(cloud: Cloud, home: Path, progress: Progress, *, dry_run: bool = False) -> list[Swept]:
    """Removes the leftovers of one place. What cannot be removed is reported; the rest is removed."""
    swept = []
    unlisted = 0.0 if dry_run else _unlisted_seconds(runs.records(home), cloud.place)
    if unlisted > 0:
        all_listed = time.monotonic() + unlisted
        swept = [one for one in _sweep_listed(cloud, home, progress, dry_run) if not one.error]
        seconds = max(all_listed - time.monotonic(), 0.0)
        progress.note(f"AWS may not list yet what a run made just before it died: looking again in {seconds:.0f} s")
        time.sleep(seconds)
    swept += _sweep_listed(cloud, home, progress, dry_run)
    # Last, for it waits until the instances in a group have ended, which must have been listed by then.
    return [*swept, *_sweep_listed_apart(cloud, runs.records(home), progress, dry_run)]


def _unlisted_seconds(records: Iterable[runs.Record], place: Place) -> float:
    """For how long lists of the place may lack what its dead runs made last."""
    last = max((one.last_alive for one in records if _is_of(one, place) and not one.alive), default=0.0)
    return min(last + place.api.consistent_seconds - time.time(), place.api.consistent_seconds)


def _sweep_listed(cloud: Cloud, home: Path, progress: Progress, dry_run: bool) -> list[Swept]:
    records = runs.records(home)
    found = []
    listed = cloud.persistent(lambda: resources.tagged(cloud, runs.TAG_RUN))
    for resource in listed:
        reason = why_leftover(dict(resource.tags), records, cloud.place, complete_image=_is_complete(resource))
        if reason:
            found.append((resource, reason))
    found += _unrecorded(listed, [record for record in records if _is_of(record, cloud.place)])
    found += _untagged(cloud, records, found)
    for record in records:  # the builder's key pair: by name, since old Packer releases do not tag it
        if not record.alive and _is_of(record, cloud.place):
            for name in (key_name(record.id), f"{key_name(record.id)}-builder"):
                tags = {runs.TAG_RUN: record.id}
                keys = resources.named_keys(cloud, name)
                found += [(Resource("key-pair", key, tags), "its run has died") for key in keys]
    swept = [_remove(cloud, resource, reason, progress, dry_run) for resource, reason in _in_order(found)]
    swept += [] if dry_run else _sweep_schedules(cloud, records, progress)
    return [*swept, *_sweep_log_groups(cloud, records, progress, dry_run)]


def _unrecorded(listed: Iterable[Resource], records: Iterable[runs.Record]) -> Iterator[tuple[Resource, str]]:
    """Complete images that no build.json names, since their run died before that; and snapshots of one that is gone.

    Nobody would use or remove them. Images of layers are found by their tags, and have an expiry.
    """
    dead = {record.id: record.images for record in records if not record.alive and record.images is not None}
    of_images = {identity for resource in listed if resource.kind == "image" for _, identity in resource.attached}
    for resource in listed:
        recorded = dead.get(resource.tags.get(runs.TAG_RUN, ""))
        if recorded is None or not _is_complete(resource) or amis.layer_of(resource.tags):
            continue
        if resource.kind == "image" and resource.id not in recorded:
            yield resource, "its run died before it recorded the image"
        elif resource.kind == "snapshot" and not recorded and resource.id not in of_images:
            yield resource, "its run has died, and its image is gone"


def _untagged(
    cloud: Cloud, records: Iterable[runs.Record], found: Iterable[tuple[Resource, str]]
) -> list[tuple[Resource, str]]:
    """Images that Packer before 1.7 had not tagged, of builders of dead runs and of builders that are leftovers."""
    builders = {
        resource.id: (resource.tags[runs.TAG_RUN], reason)
        for resource, reason in found
        if resource.kind == "instance" and resource.tags.get("Name", "").endswith(_BUILDER)
    }
    for record in records:
        if not record.alive and _is_of(record, cloud.place):
            builders |= dict.fromkeys(record.builders, (record.id, "its run has died"))
    untagged = []
    for builder, (run, reason) in builders.items():
        tags = {runs.TAG_RUN: run, runs.TAG_EXPIRES: runs.as_text(runs.now()), "Name": f"gpu-ami {run}{_BUILDER}"}
        reason = f"{reason}; not tagged, made of builder {builder}"
        untagged += [(resource, reason) for resource in resources.untagged_of(cloud, builder, tags)]
    return untagged


def _sweep_schedules(cloud: Cloud, records: Iterable[runs.Record], progress: Progress) -> Iterator[Swept]:
    """Deletes schedules of instances that have ended: their run died before it deleted them."""
    if not cloud.place.dead_man_role:
        return
    for record in records:
        if record.alive or not _is_of(record, cloud.place):
            continue
        for instance in cloud.instances_of(record.id, "shutting-down", "terminated"):
            try:
                outcome, refusal = "removed" if cloud.forget_end(instance) else "", ""
            except CloudError as error:
                outcome, refusal = "not removed", error.message
            if outcome:
                reason = "its run has died"
                yield Swept("schedule", launches.schedule_name(instance), record.id, reason, outcome, refusal)
                progress.note(f"schedule of {instance} of run {record.id}: {outcome}")


def _sweep_listed_apart(
    cloud: Cloud, records: Iterable[runs.Record], progress: Progress, dry_run: bool
) -> Iterator[Swept]:
    """Removes what has list calls of its own. It is free: a caller may lack the permission.

    Where the list fails otherwise, the records of dead runs stay.
    """
    for what, listed in _LISTED_APART.items():
        try:
            found = listed(cloud)
        except CloudError as error:
            progress.note(f"{what}: not removed: {error}")
            if aws_errors.may_pass(error):
                yield Swept(what, "*", "", "not listed", "not removed", _sentence(error))
            continue
        for resource in found:
            reason = why_leftover(dict(resource.tags), records, cloud.place)
            if reason:
                yield _remove(cloud, resource, reason, progress, dry_run)


def _sweep_log_groups(
    cloud: Cloud, records: Iterable[runs.Record], progress: Progress, dry_run: bool
) -> Iterator[Swept]:
    """Removes log groups of proofs, which have no tags: their names have the run's id. After the machines' end."""
    try:
        groups = log_groups.of_proofs(cloud)
    except CloudError as error:
        progress.note(f"log groups of proofs are not removed: {error}")
        yield Swept("log-group", "*-proof/*", "", "not listed", "not removed", error.message)
        return
    known = {record.id: record for record in records if record.alive or _is_of(record, cloud.place)}
    for group in groups:
        run = log_groups.run_of(group)
        record = known.get(run)
        if record and record.alive:
            continue
        if record or log_groups.is_old(group):
            reason = "its run has died" if record else "its run began more than a day ago"
            yield _remove(cloud, Resource("log-group", group, {runs.TAG_RUN: run}), reason, progress, dry_run)


def _is_complete(resource: Resource) -> bool:
    """Whether it is a complete image or a snapshot of one: Packer replaces the builder's tags when the image is."""
    if resource.kind not in ("image", "snapshot") or resource.tags.get("Name", "").endswith(_BUILDER):
        return False
    return resource.kind == "snapshot" or resource.state == "available"


def end_processes(
    home: Path, place: str, progress: Progress, *, file: runs.PlaceFile | None = None, dry_run: bool = False
) -> list[Swept]:
    """Ends processes of this machine that were given the private folder of a run that is over.

    That is a dead run at `place`, or one that is registered no more, at whatever place it was.
    """
    records = {record.id: record for record in runs.records(home)}
    swept = []
    for run, processes in sorted(process.below(home / "runs").items()):
        record = records.get(run)
        if record and (record.alive or not record.is_of(place, file)):
            continue
        for left in processes:
            swept.append(_end(left, run, "its run has died" if record else "its run has ended", dry_run))
            progress.note(f"process {left.pid} of run {run} ({swept[-1].reason}): {swept[-1].text}")
        if record and not dry_run:
            runs.touch(record)  # they may have made something until now
    return swept


def _end(left: process.ProcessIdentity, run: str, reason: str, dry_run: bool) -> Swept:
    if dry_run:
        return Swept("process", str(left.pid), run, reason, "would be removed")
    if process.end(left):
        return Swept("process", str(left.pid), run, reason, "removed")
    return Swept("process", str(left.pid), run, reason, "not removed", f"process {left.pid} does not end")


def _in_order(found: list[tuple[Resource, str]]) -> list[tuple[Resource, str]]:
    # Instances first, for groups and volumes depend on them; images before their snapshots. A resource found twice (by
    # tag, attached) is removed once.
    unique = {(resource.kind, resource.id): (resource, reason) for resource, reason in found}
    for resource, reason in found:
        for kind, identity in resource.attached:
            unique.setdefault((kind, identity), (Resource(kind, identity, resource.tags), reason))
    return sorted(unique.values(), key=lambda item: _ORDER.get(item[0].kind, len(_ORDER)))


def _remove(cloud: Cloud, resource: Resource, reason: str, progress: Progress, dry_run: bool) -> Swept:
    run = resource.tags.get(runs.TAG_RUN, "")
    outcome, refusal = "would be removed", ""
    if kept := _why_kept(cloud, resource):
        outcome, refusal = "not removed", kept
    elif not dry_run:
        try:
            _REMOVALS.get(resource.kind, resources.remove)(cloud, resource)
            outcome = "removed"
        except CloudError as error:
            # Gone since it was listed; or not known yet, and then it is listed again.
            gone = aws_errors.is_gone(error.code)
            outcome, refusal = ("removed", "") if gone else ("not removed", _sentence(error))
    swept = Swept(resource.kind, resource.id, run, reason, outcome, refusal)
    progress.note(f"{resource.kind} {resource.id} of run {run} ({reason}): {swept.text}")
    return swept


def _sentence(error: CloudError) -> str:
    """An error in one line: what was tried, AWS's code and words, and what to do."""
    words = ": ".join([error.message, *error.details])
    return f"{words} → {error.hint}" if error.hint else words


def _why_kept(cloud: Cloud, resource: Resource) -> str:
    """Why a complete AMI stays although it has expired: somebody uses it, or AWS does not tell; else "".

    Its snapshots cannot be deleted while it is registered. Images of layers are a cache that only builds read.
    """
    if resource.kind != "image" or not _is_complete(resource) or amis.layer_of(resource.tags):
        return ""
    try:
        used_by = amis.in_use(cloud, resource.id)
    except CloudError as error:
        return f"not examined whether it is in use: {error.message}"
    shown = ", ".join(used_by[:3]) + (f" and {len(used_by) - 3} more" if len(used_by) > 3 else "")
    return f"in use: {shown}" if used_by else ""


def forget_dead_runs(
    home: Path, place: str, progress: Progress, *, file: runs.PlaceFile | None = None, dry_run: bool = False
) -> list[Swept]:
    """Removes the records and temporary keys of dead runs; only after their resources went.

    Records of another place stay; those of one with the same name are noted.
    """
    swept = []
    for record in runs.records(home):
        if record.alive or not record.is_of(place, file):
            if not record.alive and record.place == place and (other := record.place_file):
                command = f"`gpu-ami sweep --where {other.path}`"
                progress.note(
                    f"dead run {record.id} is of {other.path} ({other.region}): {command} removes its leftovers"
                )
            continue
        if not dry_run:
            runs.forget(record.folder)
        outcome = "would be removed" if dry_run else "removed"
        progress.note(f"record and temporary key of dead run {record.id}: {outcome}")
        swept.append(Swept("run", record.id, record.id, "its process has ended", outcome))
    return swept
