"""Which older images are deprecated and which are due, by their number and age.

`--to`: latest names an image that was published before, in all regions or in none; nothing is deleted.
"""

from __future__ import annotations

import datetime
import json
from pathlib import Path

import pytest

from gpu_ami.publish import release
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.release import TAG_PUBLISHED, Image
from tests.json_documents import valid
from tests.publish.conftest import HOME, LATEST, OTHER, Account

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
    assert release.due(older(100, 100), policy(), NOW) == []


def test_the_new_image_is_the_first_of_those_that_stay() -> None:
    assert [one.id for one in release.surplus(older(None, None, None), policy(keep=2))] == ["ami-2", "ami-3"]


def test_what_was_deprecated_long_enough_is_due() -> None:
    assert [one.id for one in release.due(older(6, 6, 4, None), policy(keep=2), NOW)] == ["ami-2"]


def test_the_surplus_is_deprecated_at_once_and_the_rest_by_its_age() -> None:
    rows = release.to_deprecate(older(None, None, -100, 3), policy(keep=2, deprecate_after=30), NOW)
    assert [(one.id, (goal - NOW).days) for one, goal in rows] == [("ami-1", 20), ("ami-2", 0), ("ami-3", 0)]


def test_a_date_that_has_passed_becomes_soon() -> None:
    (old,) = older(None)
    assert release.deprecation(old, policy(deprecate_after=3), NOW) == NOW + release.SOON
    assert release.deprecation(old, policy(), NOW) is None
    assert release.is_about("2026-11-22T12:01:00.000Z", NOW) and not release.is_about("", NOW)


@pytest.fixture
def second(account: Account) -> Path:
    """Two images were published; the folder of the second."""
    account.publish(account.build(1))
    out = account.build(2)
    account.publish(out)
    return out


def latest(account: Account) -> list[str]:
    """The names of the images that latest names."""
    names = {row["ImageId"]: row["Name"] for region in (HOME, OTHER) for row in account.images(region)}
    return [names[account.parameters(region)[LATEST]] for region in (HOME, OTHER)]


def test_latest_names_the_previous_image_again(
    account: Account, second: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    account.deprecate(account.images(OTHER)[0]["ImageId"], OTHER, days_ago=1)
    capsys.readouterr()
    assert account.publish(second, "--to", "previous", "--dry-run", "--json") == 0
    planned = json.loads(capsys.readouterr().out)
    valid(planned, "publish")
    assert [len(row["steps"]) for row in planned["regions"]] == [1, 2]
    assert latest(account) == ["gpu-ami-20261122000002"] * 2
    assert account.publish(second, "--to", "previous") == 0
    assert "rolled back to: gpu-ami-20261122000001 in us-east-1, eu-central-1" in capsys.readouterr().out
    assert latest(account) == ["gpu-ami-20261122000001"] * 2
    assert len(account.images(OTHER)) == 2 and "DeprecationTime" not in account.images(OTHER)[0]
    valid(account.record(second, "rollback.json"), "publish")
    assert account.record(second)["state"] == "published"
    assert account.publish(second, "--to", "gpu-ami-20261122000002") == 0
    assert latest(account) == ["gpu-ami-20261122000002"] * 2


def test_what_is_not_published_everywhere_moves_nowhere(
    account: Account, second: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert account.publish(second, "--to", "v7") == 2
    error = capsys.readouterr().err
    assert "no published image v7" in error and "published: gpu-ami-20261122000002, gpu-ami-2026112200000" in error
    first = account.images(OTHER)[0]["ImageId"]
    ec2 = account.client("ec2", OTHER)
    ec2.disable_image_deregistration_protection(ImageId=first)
    ec2.deregister_image(ImageId=first)
    assert account.publish(second, "--to", "previous") == 4
    assert "gpu-ami-20261122000001 is not published in eu-central-1" in capsys.readouterr().out
    assert latest(account) == ["gpu-ami-20261122000002"] * 2
    account.policy(ssm=None)
    assert account.publish(second, "--to", "previous") == 2
    assert "the policy has no SSM parameters" in capsys.readouterr().err
