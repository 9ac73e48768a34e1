"""This machine and the region: its network, public addresses, what a dead daemon left."""

from __future__ import annotations

import signal
import socket
import subprocess
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import Cloud, Launch, Place
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import CloudError, MachineError
from gpu_ami.files import write_json
from gpu_ami.local import network, state
from gpu_ami.local.network import claim_network
from gpu_ami.local.state import Layout
from gpu_ami.process import identify
from gpu_ami.progress import Progress
from gpu_ami.validate.machines.machine import Boot, Machine
from tests.local.conftest import BASE_ID, World

# What a killed region left: its own processes are ended, by identity; other processes are not.


def test_leftovers_are_found_by_identity_and_ended(tmp_path: Path) -> None:
    layout = Layout(tmp_path)
    layout.make()
    mine, other = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["sleep", "60"])
    try:
        for name, process in (("i-1", mine), ("i-2", other)):
            identity = identify(process.pid)
            assert identity is not None
            started = identity.started if process is mine else "an earlier boot/77"
            layout.instance(name).mkdir()
            write_json(layout.instance(name) / "process.json", {"pid": process.pid, "started": started})
        write_json(layout.region_file, {})
        found = state.clear(layout)
        assert mine.wait(10) == -signal.SIGKILL
        assert other.poll() is None  # the pid was recorded, but it is another process now
        assert found == [f"machine of i-1 (pid {mine.pid})", "disk of i-1", "disk of i-2", str(layout.region_file)]
        assert list(layout.instances.iterdir()) == []
        assert state.clear(layout) == []
    finally:
        mine.kill()
        other.kill()
        other.wait()


# Loopback networks of the region.


def test_two_regions_get_two_networks() -> None:
    one, two = claim_network(), claim_network()
    with one.claim, two.claim:
        assert one.cidr != two.cidr
        assert one.cidr.startswith("127.")


def test_a_port_in_use_on_all_addresses_is_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Something else listens on the preferred port: instances get the next one."""
    with socket.create_server(("0.0.0.0", 0)) as server:
        taken = int(server.getsockname()[1])
        with socket.create_server(("127.0.0.1", 0)) as other:
            free = int(other.getsockname()[1])
        monkeypatch.setattr(network, "_SSH_PORTS", (taken, free))
        claimed = claim_network()
        with claimed.claim:
            assert claimed.ssh_port == free


def test_no_free_network_is_an_error_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        monkeypatch.setattr(network, "_SSH_PORTS", (int(server.getsockname()[1]),))
        with pytest.raises(CloudError, match="no free loopback network") as caught:
            claim_network()
    assert "gpu-ami region down" in caught.value.hint


# The region's subnets give no public address by themselves (MapPublicIpOnLaunch is off): an interface asks for one.


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
