"""The steps from what a region has to what the release policy says: decided before anything is changed.

The phases are carried out one after another in all regions: copies are ordered first; `latest`, which consumers read,
moves when every region has the image and its pinned parameter; older images come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from gpu_ami.cloud import image_parameters
from gpu_ami.publish import sharing
from gpu_ami.publish.observation import View
from gpu_ami.publish.policy import ReleasePolicy
from gpu_ami.publish.release import (
    AVAILABLE,
    TAG_PUBLISHED,
    TAG_VERSION,
    Image,
    Release,
    deprecation,
    due,
    is_about,
    to_deprecate,
)

COPYING, PREPARING, POINTING, RETIRING = 1, 2, 3, 4


@dataclass(frozen=True)
class Step:
    """One change. ami: what it is about, "" for the image that the region gets. values: what the change needs."""

    phase: int
    name: str
    text: str
    ami: str = ""
    values: tuple[str, ...] = ()
    tags: Mapping[str, str] = field(default_factory=dict)


def plan(release: Release, policy: ReleasePolicy, view: View, now: datetime) -> list[Step]:
    """The steps of a region, in order; none where it is as the policy says."""
    return [
        *_copy(release, view),
        *_tags(release, view),
        *_attributes(release, policy, view, now),
        *_share(policy, view),
        *_mark(release, view, now),
        *_point(PREPARING, "pin", policy.pinned(release.version), view),
        *_point(POINTING, "latest", policy.latest, view),
        *_older(policy, view, now),
    ]


def _copy(release: Release, view: View) -> Iterator[Step]:
    if view.image is None:
        key = f", encrypted with {view.key.arn}" if view.key else ""
        text = f"copy {release.image.id} from {release.region} as {release.image.name}{key}"
        failed = tuple(one.id for one in view.failed)
        yield Step(COPYING, "copy", text, values=(view.key.arn if view.key else "", *failed))
    if view.image is None or view.image.state != AVAILABLE or not view.image.published:
        yield Step(PREPARING, "wait", "wait until it is available, several looks in a row")
    for one in view.failed:
        yield Step(PREPARING, "deregister", f"deregister {one.id}, a copy that failed: {one.reason}", one.id)


def _tags(release: Release, view: View) -> Iterator[Step]:
    """The tags of image and snapshots, as they were built; CopyImage sets those that all snapshots share."""
    expected = release.tags_in(view.region)
    if view.image is not None and (missing := _missing(expected, view.image.tags)):
        yield Step(PREPARING, "tag", f"set tags of {view.image.id}: {_shown(missing)}", view.image.id, tags=missing)
    for device, tags in release.snapshot_tags.items():
        if view.image is None:
            if missing := _missing(tags, common(release)):
                yield Step(PREPARING, "tag", f"set tags of the snapshot of {device}", values=(device,), tags=missing)
        elif missing := _missing(tags, view.snapshot_tags.get(device, {})):
            snapshot = view.image.snapshots.get(device, "")
            yield Step(PREPARING, "tag", f"set tags of {snapshot}: {_shown(missing)}", snapshot, tags=missing)


def common(release: Release) -> dict[str, str]:
    """The tags that all snapshots have: CopyImage gives every snapshot the same."""
    sets = [set(tags.items()) for tags in release.snapshot_tags.values()]
    return dict(sorted(set.intersection(*sets))) if sets else {}


def _missing(expected: Mapping[str, str], tags: Mapping[str, str]) -> dict[str, str]:
    return {key: value for key, value in expected.items() if tags.get(key) != value}


def _shown(tags: Mapping[str, str]) -> str:
    return ", ".join(f"{key}={value}" for key, value in sorted(tags.items()))


def _attributes(release: Release, policy: ReleasePolicy, view: View, now: datetime) -> Iterator[Step]:
    image = view.image or Image("", release.image.name)
    if release.image.imds and image.imds != release.image.imds:
        yield Step(PREPARING, "imds", f"require IMDSv2, as {release.image.id} does")
    if policy.deregistration_protection and not image.is_protected:
        yield Step(PREPARING, "protect", "protect it from deregistration")
    goal = deprecation(image, policy, now)
    if goal and not is_about(image.deprecated_at, goal):
        yield Step(PREPARING, "deprecate", f"deprecate it on {goal:%Y-%m-%d}", values=(goal.isoformat(),))


def _share(policy: ReleasePolicy, view: View) -> Iterator[Step]:
    missing = tuple(one for one in sharing.grantees(policy) if one not in view.shared)
    if missing:
        shown = ", ".join("everybody (public)" if one == sharing.PUBLIC else one for one in missing)
        yield Step(PREPARING, "share", f"share it with {shown}", values=missing)


def _moment(now: datetime) -> str:
    """As EC2 writes times. Milliseconds: of two images published within a second, the older one is retired."""
    return now.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _mark(release: Release, view: View, now: datetime) -> Iterator[Step]:
    if view.image is None or not view.image.published or view.image.version != release.version:
        published = (view.image.published if view.image else "") or _moment(now)
        tags = {TAG_PUBLISHED: published, TAG_VERSION: release.version}
        yield Step(PREPARING, "mark", f"mark it as published: {_shown(tags)}", tags=tags)


def _point(phase: int, name: str, parameter: str, view: View) -> Iterator[Step]:
    if not parameter:
        return
    current = view.parameters.get(parameter)
    if current is None or view.image is None or current.value != view.image.id:
        before = f", now {current.value}" if current else ""
        yield Step(phase, name, f"point {parameter} to it{before}", values=(parameter,))


def _older(policy: ReleasePolicy, view: View, now: datetime) -> Iterator[Step]:
    for one, goal in to_deprecate(view.older, policy, now):
        yield Step(RETIRING, "deprecate", f"deprecate {one.id} ({one.name})", one.id, (goal.isoformat(),))
    for one in due(view.older, policy, now):
        if not view.users.get(one.id):
            pinned = policy.pinned(one.version) if one.version else ""
            gone = f" and {pinned}" if pinned else ""
            text = f"retire {one.id} ({one.name}): deregister it, delete its snapshots{gone}"
            yield Step(RETIRING, "retire", text, one.id, (pinned,))


def notices(policy: ReleasePolicy, view: View, now: datetime) -> Iterator[str]:
    """What is otherwise than the policy says and is not changed."""
    for one in due(view.older, policy, now):
        if users := view.users.get(one.id):
            more = f" and {len(users) - 3} more" if len(users) > 3 else ""
            yield f"{one.id} ({one.name}) is not retired: used by {', '.join(users[:3])}{more}"
    strangers = sorted(view.shared - set(sharing.grantees(policy)))
    if strangers and view.image:
        yield f"{view.image.id} is also shared with {', '.join(strangers)}, whom the policy does not name"


def contradictions(release: Release, policy: ReleasePolicy, view: View) -> Iterator[str]:
    """Conflicts that need manual action."""
    pinned = policy.pinned(release.version)
    own = view.image.id if view.image else ""
    if pinned and (current := view.parameters.get(pinned)) and current.value != own:
        yield f"{pinned} names {current.value}, not {own or 'a copy that is still to be made'}: it is never moved"
    for name, row in view.parameters.items():
        if row.data_type != image_parameters.DATA_TYPE:
            expected = image_parameters.DATA_TYPE
            yield f"{name} has the data type {row.data_type}, which cannot be changed to {expected}: delete it"
