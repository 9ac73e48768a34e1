"""What an instance knows of itself."""

from __future__ import annotations

import base64
import dataclasses

import pytest

from gpu_ami.local.backends.instance import InstanceView
from tests.local.conftest import BASE_ID, PUBLIC_KEY, World

FIRST_SUBNET = "127.99.0.0/17"  # half of the region's network: it has two zones


def test_a_view_has_what_the_launch_asked_for(world: World) -> None:
    data = base64.b64encode(b"#cloud-config").decode()
    view = world.ec2.view(world.launch(user_data=data, instance_type="p4d.24xlarge"))
    assert isinstance(view, InstanceView)
    assert (view.image_id, view.instance_type, view.user_data) == (BASE_ID, "p4d.24xlarge", b"#cloud-config")
    assert (view.key_name, view.public_key, view.subnet_cidr) == ("k", PUBLIC_KEY, FIRST_SUBNET)
    assert view.tags == {"Name": "one"}
    assert view.security_groups == ((world.ec2.group_id, "gpu-ami-local"),)
    assert (view.profile_arn, view.role) == (None, None)


def test_a_view_does_not_change(world: World) -> None:
    view = world.ec2.view(world.launch())
    with pytest.raises(dataclasses.FrozenInstanceError):
        view.address = "127.0.0.1"  # type: ignore[misc]
