"""What a region has of a release, and the steps from there to what the policy says: decided before anything is changed.

A region has its AMI or copy, those with whom it is shared, parameters, keys, older images and their users. The phases
are carried out one after another in all regions: copies are ordered first; `latest`, which consumers read, moves when
every region has the image and its pinned parameter; older images come last.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import TYPE_CHECKING

from gpu_ami.cloud import Cloud, Place, amis, aws_errors, image_parameters, runs
from gpu_ami.errors import CloudError
from gpu_ami.publish import sharing
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.release import (
    AVAILABLE,
    DEAD,
    TAG_PUBLISHED,
    TAG_VERSION,
    Image,
    Release,
    deprecation,
    due,
    images,
    is_about,
    snapshots,
    to_deprecate,
)
from gpu_ami.publish.sharing import Key

if TYPE_CHECKING:
    pass


@dataclass(frozen=True)
class View:
    """A region as it is. image: the AMI or its copy, None: not there. failed: copies that failed. shared: grantees.

    key: of the policy's kms_key. snapshot_tags: by device. older: published images of the recipe, the newest first.
    users: AMI → what uses it, of the older images that are due.
    """

    region: str
    image: Image | None = None
    failed: tuple[Image, ...] = ()
    snapshot_tags: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    shared: frozenset[str] = frozenset()
    parameters: Mapping[str, image_parameters.Parameter] = field(default_factory=dict)
    key: Key | None = None
    older: tuple[Image, ...] = ()
    users: Mapping[str, Sequence[str]] = field(default_factory=dict)


def cloud_of(place: Place, region: str) -> Cloud:
    """The same account and endpoint, in a region."""
    return Cloud(place.in_region(region))


def observe(cloud: Cloud, release: Release, policy: ReleasePolicy, where: RegionPolicy, now: datetime) -> View:
    """What the region has. CloudError: a call failed, or what is there contradicts the release or the policy."""
    region = where.region
    image, failed = _own(cloud, release)
    key = sharing.read_key(cloud, where.kms_key) if where.kms_key else None
    described = snapshots(cloud, image) if image else {}
    encrypted_with = sorted({arn for _, arn in described.values() if arn})
    _compare_key(image, encrypted_with, key, region)
    in_place = [sharing.read_key(cloud, arn) for arn in encrypted_with] if policy.is_shared else []
    _check_sharing(policy, release, region, in_place, key, image=image)
    shared = _shared(cloud, image) if image else frozenset()
    if policy.public and sharing.PUBLIC not in shared and (blocked := sharing.public_access(cloud)):
        raise CloudError(blocked, hint=sharing.NOT_PUBLIC)
    names = [name for name in (policy.latest, policy.pinned(release.version)) if name]
    older = _older_images(cloud, release, image)
    retired = due(older, policy, now)
    pinned = {one.id: policy.pinned(one.version) if one.version else "" for one in retired}
    return View(
        region=region,
        image=image,
        failed=tuple(failed),
        snapshot_tags={device: tags for device, (tags, _) in described.items()},
        shared=shared,
        parameters=image_parameters.read(cloud, names) if names else {},
        key=key,
        older=older,
        users=amis.users(cloud, pinned, policy.latest),
    )


def _own(cloud: Cloud, release: Release) -> tuple[Image | None, list[Image]]:
    """The release's image in the region, and copies that failed. CloudError: another image has its name."""
    named = images(cloud, "name", [release.image.name])
    is_home = cloud.place.region == release.region
    own = [one for one in named if (one.id == release.image.id if is_home else one.source == release.image.id)]
    others = [one for one in named if one not in own]
    alive = [one for one in own if one.state not in DEAD]
    if others or len(alive) > 1:
        ids = ", ".join(one.id for one in (*alive, *others))
        text = f"{cloud.place.region} has more than one image named {release.image.name}: {ids}"
        hint = f"deregister or rename what is no copy of {release.image.id}, or the second copy"
        raise CloudError(text, hint=hint)
    return (alive[0] if alive else None), [one for one in own if one.state in DEAD]


def _compare_key(image: Image | None, encrypted_with: Sequence[str], key: Key | None, region: str) -> None:
    if key is not None and not key.is_enabled:
        raise CloudError(f"{region}: {key.arn} is disabled", hint="enable it, or name another kms_key")
    if image is None or key is None or list(encrypted_with) == [key.arn]:
        return
    text = f"{region}: {image.id} is encrypted with {', '.join(encrypted_with) or 'no key'}, the policy names {key.arn}"
    hint = "of a copy: deregister it, and it is made again; of the image itself: build it with this kms_key_id"
    raise CloudError(text, hint=hint)


def _check_sharing(
    policy: ReleasePolicy,
    release: Release,
    region: str,
    in_place: Sequence[Key],
    key: Key | None,
    *,
    image: Image | None,
) -> None:
    """CloudError: the image, or the copy that would be made, cannot be shared as the policy says."""
    keys = in_place if image else [key] if key else []
    refused = list(sharing.refusals(policy, region, keys))
    if image is None and key is None and release.is_encrypted and policy.is_shared:
        refused.append(
            f"{region}: a copy of an encrypted AMI gets the key aws/ebs, which cannot be shared: set kms_key"
        )
    if refused:
        raise CloudError(f"{region}: the image cannot be shared as the policy says", details=refused)


def _shared(cloud: Cloud, image: Image) -> frozenset[str]:
    with aws_errors.translated(f"reading the launch permissions of {image.id}"):
        rows = cloud.ec2.describe_image_attribute(ImageId=image.id, Attribute="launchPermission")["LaunchPermissions"]
        return frozenset(sharing.grantee_of({key: str(value) for key, value in row.items()}) for row in rows)


def _older_images(cloud: Cloud, release: Release, image: Image | None) -> tuple[Image, ...]:
    """The recipe's other images that were published here, the newest first."""
    found = images(cloud, f"tag:{runs.TAG_RECIPE}", [release.recipe])
    published = [one for one in found if one.published and one.id != (image.id if image else "")]
    return tuple(sorted(published, key=lambda one: (one.published, one.id), reverse=True))


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
