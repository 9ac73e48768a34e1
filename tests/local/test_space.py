"""Room on the host's disks and state folders that can be written."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError
from gpu_ami.local import region, space
from gpu_ami.local.images import source_ami
from gpu_ami.local.images.store import ImageJob, ImageStore
from gpu_ami.local.machines.factory import MachineFactory
from gpu_ami.local.state import ImageRecord, Layout
from gpu_ami.progress import Progress
from tests.local.conftest import World

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
    assert 15 * MIB < space.free(small_disk) <= 16 * MIB
    space.require(small_disk, 8 * MIB, "a test")
    with pytest.raises(
        CloudError, match=rf"no space for a test: 1\.0 GiB needed in {small_disk}, 0\.0 GiB free"
    ) as caught:
        space.require(small_disk, 1024 * MIB, "a test")
    assert "GPU_AMI_HOME" in caught.value.hint


def test_a_build_without_space_says_what_images_take(small_disk: Path) -> None:
    for number in (1, 2):
        (small_disk / f"ami-{number}").mkdir()
        (small_disk / f"ami-{number}" / "disk.raw").write_bytes(b"x" * MIB)
    with pytest.raises(CloudError, match="no space for a build") as caught:
        space.require_for_build(small_disk, small_disk / "ami-1" / "disk.raw", "a build", small_disk / "spare")
    assert caught.value.hint.startswith("2 images take 0.0 GiB there: gpu-ami region down, and remove the folders")


def test_what_was_copied_for_a_build_is_not_needed_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A copy of the source image, which becomes the builder's disk, or of another, which is given up."""
    source, spare = tmp_path / "disk.raw", tmp_path / "spare"
    spare.mkdir()
    for file in (source, spare / "ami-1.0.raw"):
        file.write_bytes(b"x" * MIB)
    (spare / "ami-2.0.raw").symlink_to("removed-meanwhile")
    room = space.build_bytes(source) - space.allocated(source)
    monkeypatch.setattr(space, "free", lambda _folder: room)
    space.require_for_build(tmp_path, source, "a build", spare)
    monkeypatch.setattr(space, "free", lambda _folder: room - 1)
    with pytest.raises(CloudError, match="no space for a build"):
        space.require_for_build(tmp_path, source, "a build", spare)


def test_a_sparse_file_takes_what_is_written(tmp_path: Path) -> None:
    file = tmp_path / "disk.raw"
    with file.open("wb") as stream:
        stream.write(b"x" * MIB)
        stream.truncate(1024 * MIB)
    assert MIB <= space.allocated(file) < 2 * MIB


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
        store._copy(ImageJob(record, source))
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
        space.require_writable(tmp_path / "file" / "region")
    monkeypatch.setattr(os, "access", lambda *_: False)
    with pytest.raises(
        CloudError, match=f"cannot write to the state folder {tmp_path}/home: Permission denied"
    ) as caught:
        Layout(tmp_path / "home").make()
    assert "GPU_AMI_HOME" in caught.value.hint
