"""Which older images are deprecated, and which are retired: beyond the policy's `keep` newest, and past their time."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

from gpu_ami.publish.policy import ReleasePolicy
from gpu_ami.publish.release import Image, as_time

# EC2 rounds to the minute and refuses a time in the past.
SOON = timedelta(minutes=2)


def surplus(older: Sequence[Image], policy: ReleasePolicy) -> Sequence[Image]:
    """The older images that are not among the `keep` newest, of which the one that is published is the first."""
    return older[policy.keep - 1 :] if policy.keep else ()


def due(older: Sequence[Image], policy: ReleasePolicy, now: datetime) -> list[Image]:
    """Those of them that have been deprecated for retire_after days."""
    wait = timedelta(days=policy.retire_after)
    return [one for one in surplus(older, policy) if (since := as_time(one.deprecated_at)) and since + wait <= now]


def deprecation(image: Image, policy: ReleasePolicy, now: datetime) -> datetime | None:
    """When an image is deprecated by its own age; None without deprecate_after."""
    if not policy.deprecate_after:
        return None
    published = as_time(image.published) or now
    return max(published + timedelta(days=policy.deprecate_after), now + SOON)


def is_about(text: str, moment: datetime) -> bool:
    """Whether EC2 has this time, which it rounds to the minute."""
    at = as_time(text)
    return at is not None and abs(at - moment) <= SOON


def to_deprecate(older: Sequence[Image], policy: ReleasePolicy, now: datetime) -> list[tuple[Image, datetime]]:
    """The older images whose deprecation is missing or too late, with its time: the surplus at once."""
    rows = []
    beyond = {one.id for one in surplus(older, policy)}
    for one in older:
        at, goal = as_time(one.deprecated_at), deprecation(one, policy, now)
        if one.id in beyond and (at is None or at > now + SOON):
            rows.append((one, now + SOON))
        elif one.id not in beyond and goal is not None and at is None:
            rows.append((one, goal))
    return rows
