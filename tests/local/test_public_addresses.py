"""The region's subnets give no public address by themselves (MapPublicIpOnLaunch is off): an interface asks for one."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import Cloud, Launch, Place
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import MachineError
from gpu_ami.progress import Progress
from gpu_ami.validate.machines.machine import Boot, Machine
from tests.local.conftest import BASE_ID, World

TAGS = {"gpu-ami:run": "20261122-000000-abcdef"}


def launch(world: World, endpoint: str, ssh_interface: str, subnet_id: str | None) -> tuple[Cloud, str]:
    keys = Credentials("local", "local")
    place = Place("local", "us-east-1", endpoint=endpoint, credentials=keys, ssh_interface=ssh_interface)
    cloud = Cloud(place if subnet_id is None else Place(**{**vars(place), "subnet_id": subnet_id}))
    return cloud, cloud.launch(Launch(BASE_ID, "g5.12xlarge", "", TAGS, ""))


@pytest.mark.parametrize(("ssh_interface", "public"), [("public_ip", True), ("private_ip", False)])
def test_only_an_interface_that_asks_gets_a_public_address(
    world: World, endpoint: str, ssh_interface: str, public: bool
) -> None:
    cloud, instance_id = launch(world, endpoint, ssh_interface, world.ec2.subnet_id)
    assert bool(cloud.instance(instance_id).get("PublicIpAddress")) is public


def test_a_machine_without_the_address_of_the_login_is_named_with_what_to_do(world: World, endpoint: str) -> None:
    cloud, instance_id = launch(world, endpoint, "private_ip", world.ec2.subnet_id)
    world.settle()
    cloud.place = Place(**{**vars(cloud.place), "ssh_interface": "public_ip"})
    run: Any = SimpleNamespace()
    boot = Boot(cloud, run, "admin", Progress("quiet"), threading.Event())
    machine = Machine(instance_id, "g5.12xlarge", "", 22, "admin", world.layout.home, world.layout.home)
    with pytest.raises(MachineError, match=f"{instance_id} has no PublicIpAddress") as caught:
        boot.running(machine, 5, 0.0)
    assert "a subnet that assigns public addresses" in caught.value.hint
