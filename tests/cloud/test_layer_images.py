"""Layer images: found by their digest, the newest first, and used while they are young."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from moto import mock_aws

from gpu_ami.cloud import Cloud, Place, layer_images
from gpu_ami.cloud.layer_images import LayerImage

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
DIGEST = f"sha256:{'1' * 64}"


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        yield Cloud(Place(name="aws", region="us-east-1"))


def an_image(cloud: Cloud, name: str, **tags: str) -> str:
    ami = str(cloud.ec2.register_image(Name=name, RootDeviceName="/dev/sda1")["ImageId"])
    listed: Any = [{"Key": f"gpu-ami:{key}", "Value": value} for key, value in tags.items()]
    if listed:
        cloud.ec2.create_tags(Resources=[ami], Tags=listed)
    return ami


def test_images_are_found_by_the_digest_of_their_layer(cloud: Cloud) -> None:
    tags: Any = {"layer": "driver", "layer-digest": DIGEST, "expires": "2026-11-30T00:00:00Z"}
    made = an_image(cloud, "the layer", **tags)
    an_image(cloud, "another", **(tags | {"layer-digest": f"sha256:{'2' * 64}"}))
    an_image(cloud, "a finished image")
    found = layer_images.find(cloud, [DIGEST])
    assert [(digest, image.ami, image.layer, image.expires, image.root_device) for digest, image in found.items()] == [
        (DIGEST, made, "driver", "2026-11-30T00:00:00Z", "/dev/sda1")
    ]
    assert layer_images.find(cloud, []) == {}


@pytest.mark.parametrize(
    ("created", "expires", "fresh"),
    [
        ("2026-11-20T00:00:00.000Z", "2999-01-01T00:00:00Z", True),
        ("2026-11-16T11:59:00.000Z", "2999-01-01T00:00:00Z", False),  # older than a week
        ("2026-11-20T00:00:00.000Z", "2000-01-01T00:00:00Z", False),  # sweep removes it at any moment
        ("", "2999-01-01T00:00:00Z", False),
    ],
)
def test_an_image_is_used_while_it_is_young(created: str, expires: str, fresh: bool) -> None:
    image = LayerImage("ami-1", "driver", DIGEST, created, expires)
    assert image.is_fresh(timedelta(days=7), NOW) is fresh


@pytest.mark.parametrize(("tags", "layer"), [({"gpu-ami:layer": "driver"}, "driver"), ({"Name": "x"}, "")])
def test_an_image_says_which_layer_it_is_of(tags: dict[str, str], layer: str) -> None:
    assert layer_images.layer_of(tags) == layer
