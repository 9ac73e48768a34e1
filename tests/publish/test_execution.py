"""Steps carried out: looks until an image is available, copies that fail, retirement."""

from __future__ import annotations

import datetime
from collections.abc import Iterator
from typing import Any

import pytest

from gpu_ami.cloud import Cloud
from gpu_ami.errors import CloudError, Unreachable
from gpu_ami.progress import Progress
from gpu_ami.publish import publication
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.publication import Execution
from gpu_ami.publish.release import Image, Release
from gpu_ami.publish.steps import Step
from tests.publish.conftest import HOME, OTHER, Account

RELEASE = Release(Image("ami-1", "v1"), HOME, "demo", {}, {}, is_encrypted=False)
POLICY = ReleasePolicy((RegionPolicy(HOME),))
WAIT = Step(2, "wait", "")


def waiting(account: Account, monkeypatch: pytest.MonkeyPatch, states: list[Any]) -> tuple[Execution, list[Any]]:
    """An execution whose looks find these states: a state, None for no image, or an error."""
    rest = iter(states)
    seen: list[Any] = []

    def looked(*_: Any) -> list[Image]:
        seen.append(state := next(rest))
        if isinstance(state, Exception):
            raise state
        return [Image("ami-1", "v1", state, reason="the key is gone")] if state else []

    monkeypatch.setattr(publication, "images", looked)
    monkeypatch.setattr(publication, "POLL_SECONDS", 0)
    return Execution(Cloud(account.place()), RELEASE, POLICY, Progress("quiet"), "ami-1"), seen


def test_an_image_counts_as_available_after_several_looks_in_a_row(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    throttled = CloudError("x", code="RequestLimitExceeded")
    states = [None, "pending", "available", "pending", "available", "available", throttled, *["available"] * 3]
    run, seen = waiting(account, monkeypatch, states)
    run.carry_out(WAIT)
    assert seen == states


def test_an_outage_during_a_copy_is_not_taken_for_a_lost_image(
    account: Account, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(publication, "APPEAR_SECONDS", -1)
    outage = [Unreachable("no connection"), CloudError("x", code="InternalError")]
    states = ["pending", *outage, *["available"] * 3]
    run, seen = waiting(account, monkeypatch, states)
    run.carry_out(WAIT)
    assert seen == states


def test_a_copy_that_fails_or_disappears_ends_the_wait(account: Account, monkeypatch: pytest.MonkeyPatch) -> None:
    run, _ = waiting(account, monkeypatch, ["pending", "failed"])
    with pytest.raises(CloudError, match="ami-1 in us-east-1 is failed") as caught:
        run.carry_out(WAIT)
    assert caught.value.details == ("the key is gone",) and "another copy" in caught.value.hint
    run, _ = waiting(account, monkeypatch, [None])
    monkeypatch.setattr(publication, "APPEAR_SECONDS", -1)
    with pytest.raises(CloudError, match="ami-1 is not in us-east-1") as caught:
        run.carry_out(WAIT)
    assert "was it deregistered?" in caught.value.hint
    run, _ = waiting(account, monkeypatch, ["pending"])
    monkeypatch.setattr(publication, "COPY_SECONDS", -1)
    with pytest.raises(CloudError, match="is pending after 0 s"):
        run.carry_out(WAIT)


@pytest.fixture
def two(account: Account) -> Iterator[Account]:
    """Two published images; the first was deprecated ten days ago, and one stays."""
    account.policy(keep=1, retire_after=5)
    first = account.build(1)
    assert account.publish(first) == 0
    for region in (HOME, OTHER):
        account.deprecate(account.images(region)[0]["ImageId"], region, days_ago=10)
    account.build(2)
    yield account


def test_older_images_are_retired_with_snapshots_and_parameter(two: Account) -> None:
    second = two.folder / "out" / "demo-2"
    old = two.images(OTHER)[0]
    snapshot = old["BlockDeviceMappings"][0]["Ebs"]["SnapshotId"]
    assert two.publish(second) == 0
    for region in (HOME, OTHER):
        assert [row["Name"] for row in two.images(region)] == ["gpu-ami-20261122000002"]
        assert sorted(two.parameters(region)) == ["/images/demo/gpu-ami-20261122000002", "/images/demo/latest"]
    rows = two.client("ec2", OTHER).describe_snapshots(OwnerIds=["self"])["Snapshots"]
    assert snapshot not in [row["SnapshotId"] for row in rows]
    assert two.publish(second) == 0


def test_an_image_in_use_stays_and_is_named(two: Account, capsys: pytest.CaptureFixture[str]) -> None:
    second = two.folder / "out" / "demo-2"
    old = two.images(OTHER)[0]["ImageId"]
    two.client("ssm", OTHER).put_parameter(Name="/team/golden", Value=old, Type="String")
    assert two.publish(second) == 0
    assert f"{old} (gpu-ami-20261122000001) is not retired: used by SSM parameter /team/golden" in (
        capsys.readouterr().out
    )
    assert len(two.images(OTHER)) == 2 and len(two.images(HOME)) == 1


def test_a_surplus_image_is_deprecated_first(account: Account) -> None:
    account.policy(keep=1, retire_after=5)
    account.publish(account.build(1))
    assert account.publish(account.build(2)) == 0
    first = account.images(OTHER)[0]
    at = datetime.datetime.fromisoformat(first["DeprecationTime"])
    assert abs(at - datetime.datetime.now(datetime.UTC)) < datetime.timedelta(minutes=10)
    assert len(account.images(OTHER)) == 2


def test_a_copy_that_failed_is_made_again_and_removed(account: Account) -> None:
    from moto.ec2.models import ec2_backends

    out = account.build()
    source = account.images(HOME)[0]
    ec2 = account.client("ec2", OTHER)
    failed = ec2.copy_image(SourceImageId=source["ImageId"], SourceRegion=HOME, Name=source["Name"])["ImageId"]
    broken: Any = ec2_backends["123456789012"][OTHER].amis[failed]
    broken.ready_at, broken.state_when_ready = 0.0, "failed"
    assert account.publish(out) == 0
    (image,) = account.images(OTHER)
    assert image["ImageId"] != failed
