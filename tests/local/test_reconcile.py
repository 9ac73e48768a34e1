"""Instance states follow machines: what the API asks for, what a guest does by itself, what goes wrong."""

from __future__ import annotations

from typing import Any

from gpu_ami.local.images import Request
from gpu_ami.local.qemu import Exit
from gpu_ami.local.reconcile import POWER_DOWN_SECONDS

from .conftest import World


def stop(world: World, instance: Any) -> None:
    world.ec2.backend.stop_instances([instance.id])
    world.reconciler.absorb()


def running(world: World, **changes: Any) -> Any:
    instance = world.launch(**changes)
    world.settle()
    assert instance.state == "running"
    return instance


def test_an_instance_is_pending_till_its_machine_is_on(world: World) -> None:
    instance = world.launch()
    assert instance.state == "pending"
    world.reconciler.step()
    world.machine.ready = False
    world.settle()
    assert instance.state == "pending"
    world.machine.ready = True
    world.settle()
    assert instance.state == "running"


def test_an_instance_is_stopping_till_its_guest_is_down(world: World) -> None:
    instance = running(world)
    stop(world, instance)
    assert instance.state == "stopping"
    world.settle()
    assert (instance.state, world.machine.told) == ("stopping", ["power_down"])
    world.machine.ended = Exit("shutdown")
    world.settle()
    assert instance.state == "stopped"
    assert world.machines.discarded == []


def test_a_guest_that_does_not_go_down_loses_its_power(world: World) -> None:
    instance = running(world)
    stop(world, instance)
    world.settle()
    world.clock.now = POWER_DOWN_SECONDS - 1
    world.settle()
    assert world.machine.told == ["power_down"]
    world.clock.now = POWER_DOWN_SECONDS + 1
    world.settle()
    assert world.machine.told == ["power_down", "kill"]
    assert instance.state == "stopped"


def test_force_does_not_wait_for_the_guest(world: World) -> None:
    instance = running(world)
    world.ec2.backend.stop_instances([instance.id])
    world.reconciler.force(instance.id)
    world.settle()
    assert (world.machine.told[-1], instance.state) == ("kill", "stopped")


def test_a_stopped_instance_starts_on_the_same_disk(world: World) -> None:
    instance = running(world)
    stop(world, instance)
    world.settle()
    world.machine.ended = Exit("shutdown")
    world.settle()
    world.ec2.backend.start_instances([instance.id])
    world.reconciler.absorb()
    assert instance.state == "pending"
    world.settle()
    assert (instance.state, len(world.machines.started), world.machines.discarded) == ("running", 2, [])


def test_terminate_kills_and_removes(world: World) -> None:
    instance = running(world)
    world.ec2.backend.terminate_instances([instance.id])
    world.reconciler.absorb()
    assert instance.state == "shutting-down"
    world.settle()
    assert (instance.state, world.machine.told, world.machines.discarded) == ("terminated", ["kill"], [instance.id])


def test_reboot_is_a_new_boot_of_a_running_instance(world: World) -> None:
    instance = running(world)
    world.reconciler.reboot(instance.id)
    world.settle()
    assert world.machine.told == ["power_down"]
    world.machine.ended = Exit("shutdown")
    world.settle()
    assert (instance.state, len(world.machines.started)) == ("running", 2)


def test_a_guest_that_reboots_itself_is_started_again(world: World) -> None:
    instance = running(world)
    world.machine.ended = Exit("reset")
    world.settle()
    assert (instance.state, len(world.machines.started)) == ("running", 2)


def test_a_guest_that_shuts_itself_down_stops(world: World) -> None:
    instance = running(world)
    world.machine.ended = Exit("shutdown")
    world.settle()
    assert (instance.state, instance.state_reason.code) == ("stopped", "Client.InstanceInitiatedShutdown")
    assert len(world.machines.started) == 1


def test_shutdown_behaviour_terminate_is_honoured(world: World) -> None:
    instance = running(world, instance_initiated_shutdown_behavior="terminate")
    world.machine.ended = Exit("shutdown")
    world.settle()
    assert (instance.state, world.machines.discarded) == ("terminated", [instance.id])


def test_a_machine_that_dies_says_why(world: World) -> None:
    instance = running(world)
    world.machine.ended = Exit("died", "QEMU ended with -9")
    world.settle()
    assert instance.state == "stopped"
    assert instance.state_reason.message == "Server.InternalError: QEMU ended with -9"


def test_a_machine_that_cannot_start_says_why(world: World) -> None:
    world.machines.broken = "the image's boot menu names /boot/vmlinuz, which is not in the image"
    instance = world.launch()
    world.settle()
    assert instance.state == "terminated"
    assert "Internal error on launch: the image's boot menu" in instance.state_reason.message


def test_several_instances_do_not_mind_each_other(world: World) -> None:
    one, two = running(world), running(world, instance_type="p4d.24xlarge")
    assert one.private_ip != two.private_ip
    world.ec2.backend.terminate_instances([one.id])
    world.settle()
    assert (one.state, two.state) == ("terminated", "running")


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


def test_the_root_volume_is_the_image_s(world: World) -> None:
    instance = world.launch()
    volume = world.ec2.root_volume(instance)
    assert (list(instance.block_device_mapping), volume.size) == (["/dev/xvda"], 8)
    assert volume.snapshot_id == "snap-0000000000000000b"


def test_an_image_of_an_encrypted_volume_is_encrypted(world: World) -> None:
    mapping = [{"DeviceName": "/dev/xvda", "Ebs": {"VolumeSize": 16, "Encrypted": True, "VolumeType": "gp3"}}]
    instance = running(world, block_device_mappings=mapping)
    image = create_image(world, instance, "made", no_reboot=True)
    world.settle()
    ebs = image.block_device_mappings[0]["Ebs"]
    assert (ebs["Encrypted"], ebs["VolumeSize"], image.ebs_snapshot.encrypted) == (True, 16, True)


def test_going_down_ends_every_machine(world: World) -> None:
    one, two = running(world), running(world)
    world.reconciler.stop_all()
    assert [machine.told for machine in world.machines.started] == [["kill"], ["kill"]]
    assert world.machines.discarded == [one.id, two.id]
