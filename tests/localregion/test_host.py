"""This machine and the region: its network, public addresses, what a dead daemon left.

Room on the host's disks and state folders that can be written.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import ApiAccess, Cloud, Launch, Login, Network, Place
from gpu_ami.cloud.place import Credentials
from gpu_ami.errors import CloudError, MachineError
from gpu_ami.files import write_json
from gpu_ami.process import identify
from gpu_ami.progress import Progress
from gpu_ami.validate.machines.machine import Boot, Machine
from localregion import host, loopback, region, state
from localregion.images import source_ami
from localregion.images.store import ImageJob, ImageStore
from localregion.loopback import claim_network
from localregion.machines.factory import MachineFactory
from localregion.state import ImageRecord, Layout
from tests.localregion.conftest import BASE_ID, World

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
        monkeypatch.setattr(loopback, "SSH_PORTS", (taken, free))
        claimed = claim_network()
        with claimed.claim:
            assert claimed.ssh_port == free


def test_no_free_network_is_an_error_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("0.0.0.0", 0)) as server:
        monkeypatch.setattr(loopback, "SSH_PORTS", (int(server.getsockname()[1]),))
        with pytest.raises(CloudError, match="no free loopback network") as caught:
            claim_network()
    assert "gpu-ami region down" in caught.value.hint


# The region's subnets give no public address by themselves (MapPublicIpOnLaunch is off): an interface asks for one.


TAGS = {"gpu-ami:run": "20261122-000000-abcdef"}


def launch(world: World, endpoint: str, ssh_interface: str, subnet_id: str | None) -> tuple[Cloud, str]:
    keys = Credentials("local", "local")
    place = Place(
        "local",
        "us-east-1",
        api=ApiAccess(endpoint=endpoint, credentials=keys),
        login=Login(ssh_interface=ssh_interface),
    )
    cloud = Cloud(place if subnet_id is None else replace(place, network=Network(subnet_ids=(subnet_id,))))
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
    cloud.place = replace(cloud.place, login=Login(ssh_interface="public_ip"))
    run: Any = SimpleNamespace()
    boot = Boot(cloud, run, "admin", Progress("quiet"), threading.Event())
    machine = Machine(instance_id, "g5.12xlarge", "", 22, "admin", world.layout.home, world.layout.home)
    with pytest.raises(MachineError, match=f"{instance_id} has no PublicIpAddress") as caught:
        boot.running(machine, 5, 0.0)
    assert "a subnet that assigns public addresses" in caught.value.hint


MIB = 1024**2


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of 16 MiB."""
    if os.geteuid() != 0:
        pytest.skip("only root may mount")
    folder = tmp_path / "small"
    folder.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=16m,mode=700", "tmpfs", folder], capture_output=True)
    if done.returncode != 0:
        pytest.skip("this host does not let us mount a tmpfs")
    yield folder
    subprocess.run(["umount", folder], check=True)


def test_room_is_measured_on_the_disk_of_the_folder(small_disk: Path) -> None:
    assert 15 * MIB < host.free(small_disk) <= 16 * MIB
    host.require(small_disk, 8 * MIB, "a test")
    with pytest.raises(
        CloudError, match=rf"no space for a test: 1\.0 GiB needed in {small_disk}, 0\.0 GiB free"
    ) as caught:
        host.require(small_disk, 1024 * MIB, "a test")
    assert "GPU_AMI_HOME" in caught.value.hint


def test_a_build_without_space_says_what_images_take(small_disk: Path) -> None:
    for number in (1, 2):
        (small_disk / f"ami-{number}").mkdir()
        (small_disk / f"ami-{number}" / "disk.raw").write_bytes(b"x" * MIB)
    with pytest.raises(CloudError, match="no space for a build") as caught:
        host.require_for_build(small_disk, small_disk / "ami-1" / "disk.raw", "a build", small_disk / "spare")
    assert caught.value.hint.startswith("2 images take 0.0 GiB there: gpu-ami region down, and remove the folders")


def test_what_was_copied_for_a_build_is_not_needed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the source image, which becomes the builder's disk, or of another, which is given up."""
    source, spare = tmp_path / "disk.raw", tmp_path / "spare"
    spare.mkdir()
    for file in (source, spare / "ami-1.0.raw"):
        file.write_bytes(b"x" * MIB)
    (spare / "ami-2.0.raw").symlink_to("removed-meanwhile")
    room = host.build_bytes(source) - host.allocated(source)
    monkeypatch.setattr(host, "free", lambda _folder: room)
    host.require_for_build(tmp_path, source, "a build", spare)
    monkeypatch.setattr(host, "free", lambda _folder: room - 1)
    with pytest.raises(CloudError, match="no space for a build"):
        host.require_for_build(tmp_path, source, "a build", spare)


def test_a_sparse_file_takes_what_is_written(tmp_path: Path) -> None:
    file = tmp_path / "disk.raw"
    with file.open("wb") as stream:
        stream.write(b"x" * MIB)
        stream.truncate(1024 * MIB)
    assert MIB <= host.allocated(file) < 2 * MIB


def test_a_boot_on_a_full_disk_ends_terminated_with_the_reason(
    small_disk: Path, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    factory = MachineFactory(Layout(small_disk), world.ec2, world.images.disk_of, lambda: None, (2222, 1, None))
    monkeypatch.setattr(world.machines, "prepare", factory.prepare)
    instance = world.launch()
    world.settle()
    assert instance.state == "terminated"
    reason = f"Internal error on launch: no space for the disk of {instance.id}: 0.5 GiB needed in {small_disk}"
    assert reason in instance.state_reason.message


def test_an_image_that_has_no_room_fails_before_it_is_copied(small_disk: Path, world: World, tmp_path: Path) -> None:
    source = tmp_path / "disk.raw"
    source.write_bytes(os.urandom(32 * MIB))
    store = ImageStore(Layout(small_disk), world.ec2, lambda *_: None, lambda: None, Progress("quiet"))  # type: ignore[arg-type,return-value]
    record = ImageRecord("ami-1", "n", "", "1", "x86_64", "/dev/xvda", "snap-1", 8, "2026-11-21T00:00:00.000Z")
    with pytest.raises(CloudError, match="no space for the disk of image ami-1"):
        store.copy_as(ImageJob(record, source))
    assert list((small_disk / "images/ami-1").iterdir()) == []


def test_a_build_needs_room_for_its_disk_and_its_image(
    small_disk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    disk = tmp_path / "base.raw"
    disk.write_bytes(b"x" * MIB)
    record = ImageRecord(
        "ami-1", "debian-12", "", "1", "x86_64", "/dev/xvda", "snap-1", 8, "2026-11-21T00:00:00.000Z", disk=str(disk)
    )
    monkeypatch.setattr(source_ami, "ensure", lambda *_: (record, ""))
    with pytest.raises(CloudError, match=r"no space for a build on debian-12: 4\.0 GiB needed in .*/images"):
        region.publish_source_ami({}, small_disk, progress=Progress("quiet"))


def test_a_state_folder_that_cannot_be_written_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(CloudError, match=f"cannot write to the state folder {tmp_path}/file/region: Not a directory"):
        host.require_writable(tmp_path / "file" / "region")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(
        CloudError, match=f"cannot write to the state folder {tmp_path}/home: Permission denied"
    ) as caught:
        Layout(tmp_path / "home").make()
    assert "GPU_AMI_HOME" in caught.value.hint
