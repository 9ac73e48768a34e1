"""What a region has: as the API describes it, and what contradicts the policy."""

from __future__ import annotations

import datetime

import pytest

from gpu_ami.cloud import Cloud
from gpu_ami.errors import CloudError
from gpu_ami.publish import observation
from gpu_ami.publish.policy import RegionPolicy, ReleasePolicy
from gpu_ami.publish.release import read_release
from tests.publish.conftest import CONSUMER, HOME, LATEST, OTHER, Account

NOW = datetime.datetime.now(datetime.UTC)
POLICY = ReleasePolicy((RegionPolicy(HOME),), (CONSUMER,), prefix="/images/demo")


def test_a_view_has_what_the_region_has(account: Account) -> None:
    account.publish(account.build(1))
    account.build(2)
    cloud = Cloud(account.place())
    view = observation.observe(
        cloud, read_release(cloud, "ami-00000000000000002", "demo"), POLICY, RegionPolicy(HOME), NOW
    )
    assert view.image is not None and view.image.name == "gpu-ami-20261122000002" and view.shared == frozenset()
    assert [one.version for one in view.older] == ["gpu-ami-20261122000001"]
    assert view.parameters[LATEST].value == "ami-00000000000000001" and view.key is None
    assert view.snapshot_tags["/dev/xvda"]["of"] == "snapshot"


def test_another_region_is_the_same_account_without_a_network(account: Account) -> None:
    place = observation.cloud_of(account.place(subnet_id="subnet-1"), OTHER).place
    assert (place.region, place.endpoint, place.subnet_id) == (OTHER, account.endpoint, None)


def test_a_disabled_key_ends_the_region(account: Account) -> None:
    account.build()
    kms = account.client("kms", OTHER)
    key = kms.create_key()["KeyMetadata"]["Arn"]
    kms.disable_key(KeyId=key.rpartition("/")[2])  # moto knows no ARN here
    release = read_release(Cloud(account.place()), "ami-00000000000000001", "demo")
    with pytest.raises(CloudError, match=f"{key} is disabled"):
        observation.observe(Cloud(account.place(region=OTHER)), release, POLICY, RegionPolicy(OTHER, key), NOW)
