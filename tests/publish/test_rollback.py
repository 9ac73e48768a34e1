"""`--to`: latest names an image that was published before, in all regions or in none; nothing is deleted."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.json_documents import valid
from tests.publish.conftest import HOME, LATEST, OTHER, Account


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
