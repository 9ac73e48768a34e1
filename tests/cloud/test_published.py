"""The image before another: the same recipe, this account, available, and the newest of those that are older."""

from __future__ import annotations

import datetime

import pytest

from gpu_ami.cloud import Cloud, published
from gpu_ami.errors import UsageError


def register(cloud: Cloud, name: str, day: int, recipe: str = "demo") -> str:
    from moto.core import DEFAULT_ACCOUNT_ID
    from moto.ec2 import ec2_backends

    ami = cloud.ec2.register_image(Name=name, RootDeviceName="/dev/xvda")["ImageId"]
    if recipe:
        cloud.ec2.create_tags(Resources=[ami], Tags=[{"Key": "gpu-ami:recipe", "Value": recipe}])
    region = cloud.place.region
    ec2_backends[DEFAULT_ACCOUNT_ID][region].amis[ami].creation_date = datetime.datetime(2026, 11, day)
    return ami


def test_the_newest_older_one(cloud: Cloud) -> None:
    first, second, third = (register(cloud, f"demo-{day}", day) for day in (1, 5, 9))
    register(cloud, "other-6", 6, recipe="other")
    assert published.previous(cloud, third) == second
    assert published.previous(cloud, second) == first


def test_the_first_one_has_none_before_it(cloud: Cloud) -> None:
    first, _second = (register(cloud, f"demo-{day}", day) for day in (1, 5))
    assert published.previous(cloud, first) == ""


def test_without_the_recipe_s_tag_it_must_be_named(cloud: Cloud) -> None:
    ami = register(cloud, "demo", 1, recipe="")
    with pytest.raises(UsageError, match="has no tag gpu-ami:recipe") as error:
        published.previous(cloud, ami)
    assert "gpu-ami diff --notes BEFORE AFTER" in error.value.hint


def test_an_unknown_ami(cloud: Cloud) -> None:
    with pytest.raises(UsageError, match="is not in us-east-1"):
        published.previous(cloud, "ami-0fff")
