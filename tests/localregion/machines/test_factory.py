"""An instance made into a machine: disk, boards, relays, metadata service. No QEMU runs here."""

from __future__ import annotations

import contextlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from gpu_ami.errors import CloudError, GpuAmiError
from localregion import host
from localregion.backends import InstanceView
from localregion.backends.ec2_groups import GroupRules
from localregion.images import LoopDevice, SpareDisks, store
from localregion.machines import factory, platforms
from localregion.machines.boards import FAULT_TAG
from localregion.machines.factory import MachineFactory
from localregion.machines.firmware import Boot
from localregion.machines.qemu import MachineSpec
from localregion.sandbox.builder import BuilderSpec
from tests.localregion.conftest import FakeMachine, World

GIB = 1024**3
BOOT = Boot(Path("vmlinuz"), None, "root=/dev/vda1")


@pytest.fixture
def machines(world: World, monkeypatch: pytest.MonkeyPatch) -> MachineFactory:
    monkeypatch.setattr(factory, "read_boot", lambda *_: BOOT)
    monkeypatch.setattr(platforms, "usable", lambda *_: True)
    return MachineFactory(world.layout, world.ec2, world.images.disk_of, lambda: None, (2222, 5000, 8080))


def begins_with(disk: Path, content: bytes) -> bool:
    """Reads no further: a disk is 8 GiB with holes, and read whole it takes as much memory."""
    with disk.open("rb") as stream:
        return stream.read(len(content)) == content


def test_a_machine_has_the_image_s_disk_at_the_volume_s_size(world: World, machines: MachineFactory) -> None:
    instance = world.launch(instance_type="p4d.24xlarge")
    spec = machines.prepare(instance)
    disk = spec.folder / "disk.raw"
    assert begins_with(disk, b"base") and disk.stat().st_size == 8 * GIB
    assert not disk.with_suffix(".partial").exists()
    assert (spec.address, spec.ssh_port, spec.kvm) == (instance.private_ip, 2222, True)
    assert len(spec.boards) == 8 and "gpu-ami:nvswitch=6" in spec.oem_strings
    assert spec.vcpus == factory.vcpus_of(os.cpu_count() or 1, kvm=True)


@pytest.mark.parametrize(
    ("host_cpus", "with_kvm", "emulated"), [(1, 1, 1), (2, 2, 1), (3, 2, 1), (4, 2, 2), (64, 2, 2)]
)
def test_emulated_machines_share_the_host_s_processors(host_cpus: int, with_kvm: int, emulated: int) -> None:
    assert factory.vcpus_of(host_cpus, kvm=True) == with_kvm
    assert factory.vcpus_of(host_cpus, kvm=False) == emulated


def test_a_disk_that_was_copied_before_the_launch_is_taken(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(factory, "read_boot", lambda *_: BOOT)
    monkeypatch.setattr(platforms, "usable", lambda *_: True)
    instances = [world.launch(), world.launch()]
    with ThreadPoolExecutor(1) as workers:
        spares = SpareDisks(world.layout.instances / "spare", workers.submit)
        disk_of = world.images.disk_of
        made = MachineFactory(world.layout, world.ec2, disk_of, lambda: None, (2222, 5000, 8080), spares=spares)
        spares.begin(instances[0].image_id, disk_of(instances[0].image_id)[0])
        disks = [made.prepare(instance).folder / "disk.raw" for instance in instances]
    assert all(begins_with(disk, b"base") for disk in disks)  # the second is a copy of its own
    assert {disk.stat().st_size for disk in disks} == {8 * GIB}
    assert list((world.layout.instances / "spare").iterdir()) == []


@pytest.mark.parametrize("copied_before", [True, False])
def test_a_disk_that_was_copied_before_needs_no_space_a_second_time(
    world: World, monkeypatch: pytest.MonkeyPatch, copied_before: bool
) -> None:
    monkeypatch.setattr(factory, "read_boot", lambda *_: BOOT)
    monkeypatch.setattr(platforms, "usable", lambda *_: True)
    instance = world.launch()
    source, _ = world.images.disk_of(instance.image_id)
    with ThreadPoolExecutor(1) as workers:
        spares = SpareDisks(world.layout.instances / "spare", workers.submit)
        made = MachineFactory(
            world.layout, world.ec2, world.images.disk_of, lambda: None, (2222, 5000, 8080), spares=spares
        )
        if copied_before:
            spares.begin(instance.image_id, source)
            workers.submit(lambda: None).result()  # the copy before it is complete
        monkeypatch.setattr(host, "free", lambda _folder: host.BOOT_BYTES)
        monkeypatch.setattr(host, "allocated", lambda _file: 4096)
        if copied_before:
            made.prepare(instance)
        else:
            with pytest.raises(CloudError, match="no space for the disk of"):
                made.prepare(instance)


def test_a_disk_that_is_there_is_kept(world: World, machines: MachineFactory) -> None:
    instance = world.launch()
    disk = machines.prepare(instance).folder / "disk.raw"
    disk.write_bytes(b"written by the guest")
    machines.prepare(instance)
    assert disk.read_bytes() == b"written by the guest"


def test_a_disk_that_an_image_shares_is_copied_before_the_machine_writes_to_it(
    world: World, machines: MachineFactory
) -> None:
    instance = world.launch()
    disk = machines.prepare(instance).folder / "disk.raw"
    image = world.layout.home / "image.raw"
    os.link(disk, image)
    machines.prepare(instance)
    assert not image.samefile(disk) and image.stat().st_nlink == 1
    assert begins_with(disk, b"base") and disk.stat().st_size == 8 * GIB


def test_relays_lead_to_metadata_api_and_mirror(world: World, machines: MachineFactory) -> None:
    spec = machines.prepare(world.launch())
    assert dict(spec.relays) == {
        "169.254.169.254": "to-metadata", "169.254.169.251": "to-api", "169.254.169.252": "to-mirror",
    }  # fmt: skip
    assert "5000" in (spec.folder / "to-api").read_text() and "8080" in (spec.folder / "to-mirror").read_text()
    without = MachineFactory(world.layout, world.ec2, world.images.disk_of, lambda: None, (2222, 5000, None))
    assert "169.254.169.252" not in dict(without.prepare(world.launch()).relays)


def test_a_faulty_board_is_left_out(world: World, machines: MachineFactory) -> None:
    instance = world.launch(instance_type="p4d.24xlarge")
    world.ec2.backend.create_tags([instance.id], {FAULT_TAG: "missing-gpu-3"})
    assert [board.index for board in machines.prepare(instance).boards] == [0, 1, 2, 4, 5, 6, 7]


class RecordedSandboxes:
    def __init__(self) -> None:
        self.made: list[object] = []

    def prepare(self, view: InstanceView, folder: Path, ssh_port: int, loop: LoopDevice | None) -> BuilderSpec:
        assert (folder / "to-metadata").exists()
        return BuilderSpec(view.instance_id, folder, view.address, ssh_port, view.public_key or "", folder, loop)

    def power_on(self, prepared: object, wake: object) -> FakeMachine:
        self.made.append(prepared)
        return FakeMachine()


def test_a_tag_asks_for_a_sandbox(world: World) -> None:
    sandboxes = RecordedSandboxes()
    ports = (2222, 5000, None)
    disk_of, wake = world.images.disk_of, lambda: None
    made = MachineFactory(world.layout, world.ec2, disk_of, wake, ports, sandboxes=sandboxes)
    without = MachineFactory(world.layout, world.ec2, disk_of, wake, ports)
    instance = world.launch()
    world.ec2.backend.create_tags([instance.id], {factory.MACHINE_TAG: factory.SANDBOX})
    spec = made.prepare(instance)
    assert (spec.instance_id, spec.ssh_port) == (instance.id, 2222)
    assert isinstance(made.power_on(spec), FakeMachine) and sandboxes.made == [spec]
    made.discard(instance.id)
    with pytest.raises(GpuAmiError, match=r"tag gpu-ami:machine: 'sandbox': there are no such machines here"):
        without.prepare(instance)
    world.ec2.backend.create_tags([instance.id], {factory.MACHINE_TAG: "container"})
    with pytest.raises(GpuAmiError, match="'container'"):
        made.prepare(instance)


class Loop:
    """In the place of a loop device."""

    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.mark.parametrize(("tag", "closed"), [(factory.SANDBOX, False), (None, True), ("container", True)])
def test_a_sandbox_alone_gets_the_copy_s_loop_device(
    world: World, monkeypatch: pytest.MonkeyPatch, tag: str | None, closed: bool
) -> None:
    monkeypatch.setattr(factory, "read_boot", lambda *_: BOOT)
    monkeypatch.setattr(platforms, "usable", lambda *_: True)
    loop = Loop()
    monkeypatch.setattr(store, "attach", lambda *_: loop)
    instance = world.launch()
    if tag:
        world.ec2.backend.create_tags([instance.id], {factory.MACHINE_TAG: tag})
    with ThreadPoolExecutor(1) as workers:
        spares = SpareDisks(world.layout.instances / "spare", workers.submit)
        made = MachineFactory(
            world.layout, world.ec2, world.images.disk_of, lambda: None, (2222, 5000, None),
            sandboxes=RecordedSandboxes(), spares=spares,
        )  # fmt: skip
        spares.begin(instance.image_id, world.images.disk_of(instance.image_id)[0])
        with contextlib.suppress(GpuAmiError):  # of the tag that is none
            prepared = made.prepare(instance)
            assert getattr(prepared, "loop", None) is (None if closed else loop)
    assert loop.closed is closed


def test_an_image_that_is_not_there_is_an_error(world: World, machines: MachineFactory) -> None:
    instance = world.launch()
    world.ec2.backend.amis.pop(instance.image_id)
    with pytest.raises(GpuAmiError, match=f"there is no image {instance.image_id}"):
        machines.prepare(instance)


def test_kvm_needs_a_kernel_to_try(machines: MachineFactory) -> None:
    assert (machines.kvm_usable(None), machines.kvm_usable(BOOT)) == (False, True)


def test_nothing_is_left_of_a_discarded_machine(world: World, machines: MachineFactory) -> None:
    instance = world.launch()
    spec = machines.prepare(instance)
    machines.note(instance.id, "paused")
    assert (spec.folder / "console.log").read_bytes().endswith(b"paused\r\n")
    assert machines.folder(instance.id) == spec.folder and machines.free_space(instance.id) > 0
    machines.discard(instance.id)
    assert not spec.folder.exists()


def test_security_groups_are_applied_only_where_conditions_ask_for_it(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    powered: list[MachineSpec] = []

    class Powered:
        def __init__(self, spec: MachineSpec, _wake: object) -> None:
            self.spec, self.ready = spec, False
            powered.append(spec)

    monkeypatch.setattr(factory, "read_boot", lambda *_: BOOT)
    monkeypatch.setattr(platforms, "usable", lambda *_: True)
    monkeypatch.setattr(factory, "QemuMachine", Powered)
    world.ec2.set_group_rules(GroupRules(), 2222)
    for filtered in (False, True):
        made = MachineFactory(
            world.layout, world.ec2, world.images.disk_of, lambda: None, (2222, 5000, 8080), filtered=filtered
        )
        instance = world.launch()
        made.power_on(made.prepare(instance))
        made.apply_security_groups()
        made.discard(instance.id)
    assert [spec.ssh_closed for spec in powered] == [False, True]
