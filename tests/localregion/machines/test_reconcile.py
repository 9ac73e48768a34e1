"""Instance states follow machines: what the API asks for, what a guest does by itself, what goes wrong."""

from __future__ import annotations

from typing import Any

from localregion.host import RESUME_BYTES
from localregion.machines.qemu import Exit
from localregion.machines.reconcile import POWER_DOWN_SECONDS
from tests.localregion.conftest import World


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
    assert world.reconciler.units[instance.id].problem == "QEMU ended with -9"
    instance.start()
    world.settle()
    assert (instance.state, world.reconciler.units[instance.id].problem) == ("running", "")


def test_a_machine_that_cannot_start_says_why(world: World) -> None:
    world.machines.broken = "the image's boot menu names /boot/vmlinuz, which is not in the image"
    instance = world.launch()
    world.settle()
    assert instance.state == "terminated"
    problem = "Internal error on launch: the image's boot menu names /boot/vmlinuz, which is not in the image"
    assert instance.state_reason.message == f"Server.InternalError: {problem}"
    assert world.reconciler.units[instance.id].problem == problem  # `region status` shows it


def test_a_machine_that_dies_before_it_ran_is_terminated(world: World) -> None:
    """QEMU refuses its command line: EC2 shows no `stopped` instance that never ran."""
    instance = world.launch()
    world.reconciler.step()
    world.machine.ready, world.machine.ended = (
        False,
        Exit("died", "QEMU ended with 1; Could not set up host forwarding"),
    )
    world.settle()
    assert (instance.state, world.machines.discarded) == ("terminated", [instance.id])
    assert instance.state_reason.code == "Server.InternalError"
    assert "Internal error on launch: QEMU ended with 1; Could not set up" in instance.state_reason.message


def test_a_stopped_instance_that_cannot_start_keeps_its_disk(world: World) -> None:
    instance = running(world)
    stop(world, instance)
    world.settle()
    world.machine.ended = Exit("shutdown")
    world.settle()
    world.machines.broken = "no space for the disk"
    world.ec2.backend.start_instances([instance.id])
    world.settle()
    assert (instance.state, world.machines.discarded) == ("stopped", [])
    assert instance.state_reason.message == "Server.InternalError: no space for the disk"


def test_a_machine_paused_at_a_full_disk_is_named_and_resumes(world: World) -> None:
    instance = running(world)
    world.machine.stopped_by, world.machines.free = "no space", 4096
    world.settle()
    folder = world.layout.instance(instance.id)
    problem = f"paused: no space left on the disk of {folder}; it resumes when 0.2 GiB are free"
    assert (instance.state, instance.state_reason.message) == ("running", f"Server.InternalError: {problem}")
    assert (world.machine.told, world.machines.notes) == ([], [problem])
    assert world.reconciler.units[instance.id].problem == problem
    world.machines.free = RESUME_BYTES
    world.settle()
    assert (world.machine.told, instance.state, instance.state_reason) == (["resume"], "running", None)
    assert world.machines.notes == [problem, "resumed: there is space again"]
    assert world.reconciler.units[instance.id].problem == ""


def test_several_instances_do_not_mind_each_other(world: World) -> None:
    one, two = running(world), running(world, instance_type="p4d.24xlarge")
    assert one.private_ip != two.private_ip
    world.ec2.backend.terminate_instances([one.id])
    world.settle()
    assert (one.state, two.state) == ("terminated", "running")


def test_going_down_ends_every_machine(world: World) -> None:
    one, two = running(world), running(world)
    world.reconciler.stop_all()
    assert [machine.told for machine in world.machines.started] == [["kill"], ["kill"]]
    assert world.machines.discarded == [one.id, two.id]
