"""Images: made of an instance's disk, copied, kept, removed.

Which output folders refer to an AMI: what their documents say now.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.files import write_json
from localregion import housekeeping
from localregion.images import store
from localregion.images.store import Request, copy_disk, own_disk, share_disk
from localregion.machines.qemu import Exit
from localregion.state import clear_partial_images
from tests.localregion.conftest import World


def running(world: World, **changes: Any) -> Any:
    instance = world.launch(**changes)
    world.settle()
    assert instance.state == "running"
    return instance


def create_image(world: World, instance: Any, name: str, **request: Any) -> Any:
    image = world.ec2.backend.create_image(instance.id, name, "", [])
    world.images.announce(image.id, Request(**request))
    world.reconciler.absorb()
    return image


def test_an_image_of_a_running_instance_waits_for_the_guest_to_go_down_and_starts_it_again(world: World) -> None:
    instance = running(world)
    image = create_image(world, instance, "made")
    world.settle()
    assert (image.state, image.ebs_snapshot.status, world.machine.told) == ("pending", "pending", ["power_down"])
    world.machine.ended = Exit("shutdown")
    world.settle()
    assert (image.state, image.ebs_snapshot.status, instance.state) == ("available", "completed", "running")
    assert len(world.machines.started) == 2
    assert (world.layout.image(image.id) / "disk.raw").read_text() == instance.id


def test_an_image_without_reboot_pauses_the_machine(world: World) -> None:
    instance = running(world)
    image = create_image(world, instance, "made", no_reboot=True)
    world.settle()
    assert world.machine.told == ["pause", "resume"]
    assert (image.state, instance.state, len(world.machines.started)) == ("available", "running", 1)


def test_an_image_of_a_stopped_instance_is_its_disk_by_a_second_name(world: World) -> None:
    instance = running(world)
    disk = world.layout.instance(instance.id) / "disk.raw"
    of_running = create_image(world, instance, "running", no_reboot=True)
    world.settle()
    instance.stop()
    world.settle()
    world.machine.ended = Exit("shutdown")
    world.settle()
    image = create_image(world, instance, "stopped")
    world.settle()
    shared = world.layout.image(image.id) / "disk.raw"
    assert (image.state, shared.samefile(disk)) == ("available", True)
    assert not (world.layout.image(of_running.id) / "disk.raw").samefile(disk)


def test_a_machine_does_not_write_to_an_image(tmp_path: Path) -> None:
    disk, image = tmp_path / "disk.raw", tmp_path / "image.raw"
    disk.write_bytes(b"made")
    own_disk(disk)
    before = disk.stat().st_ino
    share_disk(disk, image)
    assert disk.stat().st_ino == before
    own_disk(disk)
    disk.write_bytes(b"written by the guest")
    assert image.read_bytes() == b"made"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["disk.raw", "image.raw"]


def test_an_image_is_there_again_with_the_next_region(world: World, empty_moto: None) -> None:
    instance = running(world)
    image = create_image(world, instance, "made", no_reboot=True, snapshot_tags=(("s", "1"),))
    world.settle()
    world.ec2.backend.create_tags([image.id], {"run": "r1"})
    world.reconciler.absorb()
    snapshot = image.ebs_snapshot.id
    world.ec2.backend.reset()

    again = World(world.layout.home)
    found = again.ec2.images()[image.id]
    assert (found.name, found.state, found.ebs_snapshot.id) == ("made", "available", snapshot)
    assert again.ec2.tags(image.id) == {"run": "r1"}
    assert again.ec2.tags(snapshot) == {"s": "1"}
    assert again.launch(image_id=image.id).root_device_name == "/dev/xvda"


def test_a_deregistered_image_is_gone_from_disk_and_stays_gone(world: World) -> None:
    image = create_image(world, running(world), "made", no_reboot=True)
    world.settle()
    assert world.layout.image(image.id).exists()
    world.ec2.backend.deregister_image(image.id)
    world.settle()
    assert not world.layout.image(image.id).exists()
    world.ec2.backend.reset()
    assert image.id not in World(world.layout.home).ec2.images()


def test_an_image_whose_copy_fails_is_failed(world: World) -> None:
    instance = running(world)
    (world.layout.instance(instance.id) / "disk.raw").unlink()
    image = create_image(world, instance, "made", no_reboot=True)
    world.settle()
    assert (image.state, image.ebs_snapshot.status) == ("failed", "error")
    assert instance.state == "running"


def test_a_copied_image_has_the_disk_of_its_source(world: World) -> None:
    copied = world.ec2.backend.copy_image("ami-0000000000000000b", "us-east-1", "copy", "")
    world.images.announce(copied.id, Request(source_image_id="ami-0000000000000000b", encrypted=True))
    world.settle()
    assert copied.state == "available"
    assert copied.block_device_mappings[0]["Ebs"]["Encrypted"] is True
    assert (world.layout.image(copied.id) / "disk.raw").read_text() == "base"


def test_an_image_of_an_encrypted_volume_is_encrypted(world: World) -> None:
    mapping = [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 16, "Encrypted": True, "VolumeType": "gp3"}}]
    instance = running(world, block_device_mappings=mapping)
    image = create_image(world, instance, "made", no_reboot=True)
    world.settle()
    ebs = image.block_device_mappings[0]["Ebs"]
    assert (ebs["Encrypted"], ebs["VolumeSize"], image.ebs_snapshot.encrypted) == (True, 16, True)


def test_a_copy_has_the_holes_of_its_source(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    target.write_bytes(b"of an earlier copy that failed" * 1000)
    with source.open("wb") as file:
        os.truncate(file.fileno(), 64 << 20)
        for place in (0, 20 << 20, (40 << 20) + 5):
            file.seek(place)
            file.write(b"data" * 2000)
    copy_disk(source, target)
    assert target.read_bytes() == source.read_bytes()
    assert target.stat().st_blocks <= source.stat().st_blocks < 1000
    source.write_bytes(b"")
    copy_disk(source, target)
    assert target.read_bytes() == b""


def test_a_copy_that_the_file_system_refuses_is_named(tmp_path: Path) -> None:
    with pytest.raises(CloudError, match=r"cannot copy .*/source to .*/nowhere/target: No such file"):
        (tmp_path / "source").touch()
        copy_disk(tmp_path / "source", tmp_path / "nowhere" / "target")


def test_an_image_is_kept_only_when_the_hosts_disk_has_it(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """As if the host had lost power before: the next region has no such image, and nothing of its folder."""
    written: list[str] = []

    def lost(path: Path) -> None:
        written.append(path.name)
        assert not (world.layout.image(image.id) / "image.json").exists()
        raise OSError(5, "Input/output error")

    monkeypatch.setattr(store, "flush_to_disk", lost)
    image = create_image(world, running(world), "made", no_reboot=True)
    world.settle()
    world.ec2.backend.create_tags([image.id], {"run": "r1"})
    world.reconciler.absorb()  # changed tags do not save it either
    assert written == ["disk.raw"]
    assert image.state == "available"
    world.ec2.backend.reset()
    assert clear_partial_images(world.layout) == [image.id]
    assert image.id not in World(world.layout.home).ec2.images()


AMI = "ami-1"


@pytest.fixture
def images(tmp_path: Path) -> Path:
    (tmp_path / "images" / AMI).mkdir(parents=True)
    (tmp_path / "out").mkdir()
    return tmp_path / "images"


@pytest.mark.parametrize("name", housekeeping.DOCUMENTS)
def test_a_document_refers_while_it_names_the_image(images: Path, tmp_path: Path, name: str) -> None:
    housekeeping.note(images, AMI, tmp_path / "out")
    housekeeping.note(images, AMI, tmp_path / "out")
    assert housekeeping.referring(images, AMI) == []
    write_json(tmp_path / "out" / name, {"ami": AMI})
    assert housekeeping.referring(images, AMI) == [tmp_path / "out" / name]
    write_json(tmp_path / "out" / name, {"ami": "ami-2"})  # the folder's next build
    assert housekeeping.referring(images, AMI) == []


def test_other_folders_are_looked_through_once(images: Path, tmp_path: Path) -> None:
    write_json(tmp_path / "out" / "report.json", {"image": AMI})
    assert housekeeping.referring(images, AMI) == []
    assert housekeeping.referring(images, AMI, [tmp_path / "out", tmp_path / "out"]) == [
        tmp_path / "out" / "report.json"
    ]


def test_a_document_that_cannot_be_read_refers(images: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    housekeeping.note(images, AMI, tmp_path / "out")
    write_json(tmp_path / "out" / "report.json", {})

    def refuse(_path: Path) -> bytes:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    assert housekeeping.referring(images, AMI) == [tmp_path / "out" / "report.json"]


def test_an_image_that_is_gone_is_no_error(images: Path, tmp_path: Path) -> None:
    housekeeping.note(images, "ami-gone", tmp_path / "out")
    assert not housekeeping.known(images, "ami-gone")
    assert housekeeping.referring(images, "ami-gone") == []
