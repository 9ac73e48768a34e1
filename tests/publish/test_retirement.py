"""Which older images are deprecated and which are due, by their number and age."""

from __future__ import annotations

import datetime

from gpu_ami.publish import retirement
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.release import TAG_PUBLISHED, Image

NOW = datetime.datetime(2026, 11, 22, 12, 0, tzinfo=datetime.UTC)


def ago(days: int) -> str:
    return f"{NOW - datetime.timedelta(days=days):%Y-%m-%dT%H:%M:00.000Z}"


def older(*deprecated_days_ago: int | None) -> list[Image]:
    """Images that were published 10, 20, … days ago; when they were deprecated, None: not."""
    return [
        Image(f"ami-{n}", f"n{n}", tags={TAG_PUBLISHED: ago(10 * n)}, deprecated_at="" if days is None else ago(days))
        for n, days in enumerate(deprecated_days_ago, 1)
    ]


def policy(keep: int = 0, deprecate_after: int = 0) -> ReleasePolicy:
    return ReleasePolicy((RegionPolicy("us-east-1"),), keep=keep, retire_after=5, deprecate_after=deprecate_after)


def test_without_keep_nothing_is_due() -> None:
    assert retirement.due(older(100, 100), policy(), NOW) == []


def test_the_new_image_is_the_first_of_those_that_stay() -> None:
    assert [one.id for one in retirement.surplus(older(None, None, None), policy(keep=2))] == ["ami-2", "ami-3"]


def test_what_was_deprecated_long_enough_is_due() -> None:
    assert [one.id for one in retirement.due(older(6, 6, 4, None), policy(keep=2), NOW)] == ["ami-2"]


def test_the_surplus_is_deprecated_at_once_and_the_rest_by_its_age() -> None:
    rows = retirement.to_deprecate(older(None, None, -100, 3), policy(keep=2, deprecate_after=30), NOW)
    assert [(one.id, (goal - NOW).days) for one, goal in rows] == [("ami-1", 20), ("ami-2", 0), ("ami-3", 0)]


def test_a_date_that_has_passed_becomes_soon() -> None:
    (old,) = older(None)
    assert retirement.deprecation(old, policy(deprecate_after=3), NOW) == NOW + retirement.SOON
    assert retirement.deprecation(old, policy(), NOW) is None
    assert retirement.is_about("2026-11-22T12:01:00.000Z", NOW) and not retirement.is_about("", NOW)
