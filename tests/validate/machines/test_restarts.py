"""Restarting a machine: what is seen, and what is blamed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.cloud import Capacity
from gpu_ami.errors import CapacityError, CloudError, GpuAmiError, MachineError, UsageError
from gpu_ami.report.document import COMES_BACK
from gpu_ami.validate.machines import machine, restart, restarts
from gpu_ami.validate.machines.restarts import REBOOT, RESTARTS, STOP_START
from tests.validate.conftest import PANIC, World, a_boot, a_machine
from validator.results import Hop


@pytest.mark.parametrize(
    ("text", "asked"),
    [("reboot", (REBOOT,)), ("stop-start, reboot", RESTARTS), ("none", ()), ("stop-start", (STOP_START,))],
)
def test_what_may_be_asked_for(text: str, asked: tuple[str, ...]) -> None:
    assert restarts.parse(text) == asked


@pytest.mark.parametrize("text", ["", "off", "none,reboot", "reboot,hibernate"])
def test_what_may_not(text: str) -> None:
    with pytest.raises(UsageError, match="expected reboot,stop-start, one of them, or none"):
        restarts.parse(text)


@pytest.mark.parametrize("order", [(0, ""), None])
def test_reboot_is_seen_by_another_boot_id(world: World, order: tuple[int, str] | None) -> None:
    world.order = order
    world.way_back = ["old", "old", "refused", "new"]
    after = restart(a_boot(world), a_machine(), REBOOT)
    assert (after.boot_id, list(after.stages)) == ("boot-new", ["ssh", "systemd"])
    assert [target.host_key for target in world.targets] == ["ssh-ed25519 AAAAfirst"] * 5  # the order, then four looks
    told = restarts.came_back(REBOOT, {"ssh": 80.0, "systemd": 92.5}, "boot-old", after.boot_id, after.url)
    assert (told.id, told.verdict, told.after) == (f"{COMES_BACK}@reboot", "PASS", REBOOT)
    assert told.hops == (Hop("reboot → ssh", 80.0), Hop("ssh → systemd", 12.5))


def test_stop_and_start_may_lead_to_another_address(world: World) -> None:
    world.way_back = ["refused", "new"]
    after = restart(a_boot(world), a_machine(), STOP_START)
    assert world.calls == ["stop", "stopped", "start", "running"]
    assert (after.url, after.boot_id) == ("ssh://admin@192.0.2.2:22", "boot-new")
    assert list(after.stages) == ["stopped", "running", "ssh", "systemd"]
    assert world.targets[-1].host_key == "ssh-ed25519 AAAAfirst"  # a new address is no reason to trust a new key


def test_an_address_may_come_after_running(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "ADDRESS_POLL_SECONDS", 0.01)
    world.way_back, late = ["refused", "new"], [True, True]
    wait = world.wait_for_state

    def without_address(instance_id: str, wanted: str, *more: Any) -> dict[str, str]:
        found = wait(instance_id, wanted, *more)
        return {"InstanceId": instance_id} if wanted == "running" and late and late.pop() else found

    monkeypatch.setattr(world, "wait_for_state", without_address)
    assert restart(a_boot(world), a_machine(), STOP_START).url == "ssh://admin@192.0.2.2:22"
    monkeypatch.setattr(machine, "ADDRESS_SECONDS", 0.05)
    world.way_back, late[:] = ["refused", "new"], [True] * 1000
    with pytest.raises(MachineError, match="i-1 has no PublicIpAddress"):
        restart(a_boot(world), a_machine(), STOP_START)


def test_a_start_without_capacity_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "START_ROUND_SECONDS", 0.01)
    world.way_back = ["refused", "new"]
    short = CapacityError("starting i-1", code="InsufficientInstanceCapacity")
    boot, left = a_boot(world), [short, short]
    world.place = replace(world.place, capacity=Capacity(start_minutes=1))
    start = world.start

    def scarce(instance_id: str) -> None:
        if left:
            raise left.pop()
        start(instance_id)

    monkeypatch.setattr(boot.cloud, "start", scarce)
    assert restart(boot, a_machine(), STOP_START).boot_id == "boot-new"
    left.append(CapacityError("starting i-1", code="VcpuLimitExceeded"))
    with pytest.raises(CapacityError):  # a quota does not pass
        restart(boot, a_machine(), STOP_START)
    assert not left


def test_a_start_that_falls_back_to_stopped_is_tried_again(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """EC2 takes the order, and says later that it has no capacity."""
    monkeypatch.setattr(machine, "START_ROUND_SECONDS", 0.01)
    world.way_back = ["new"]
    world.place = replace(world.place, capacity=Capacity(start_minutes=1))
    left = [CapacityError("i-1 is stopped, expected running", code="Server.InsufficientInstanceCapacity")]
    wait = world.wait_for_state

    def fall_back(instance_id: str, wanted: str, *rest: Any) -> Any:
        if wanted == "running" and left:
            raise left.pop()
        return wait(instance_id, wanted, *rest)

    monkeypatch.setattr(world, "wait_for_state", fall_back)
    assert restart(a_boot(world), a_machine(), STOP_START).boot_id == "boot-new"
    assert world.calls.count("start") == 2


def test_key_is_written_down_where_it_was_seen(world: World, tmp_path: Path) -> None:
    known = tmp_path / "known_hosts"
    known.write_text("192.0.2.1 ssh-ed25519 AAAAfirst\n")
    world.way_back = ["new"]
    restart(a_boot(world), a_machine(known), STOP_START)
    wanted = "192.0.2.1 ssh-ed25519 AAAAfirst\n192.0.2.2 ssh-ed25519 AAAAfirst\n"
    assert known.read_text() == wanted
    world.restarted, world.way_back = False, ["new"]
    restart(a_boot(world), a_machine(known), REBOOT)
    assert known.read_text() == wanted  # once


def break_key(world: World) -> None:
    world.next_key = "ssh-ed25519 AAAAother"


def break_boot(world: World) -> None:
    world.dies, world.way_back = True, ["refused"]


def stay_up(world: World) -> None:
    world.way_back = ["old"]


def stay_silent(world: World) -> None:
    world.way_back = ["refused"]


def refuse_order(world: World) -> None:
    world.order = (1, "sudo: a password is required")


def no_capacity(world: World) -> None:
    world.fails["start"] = CapacityError("starting i-1: InsufficientInstanceCapacity")


def no_permission(world: World) -> None:
    world.fails["stop"] = CloudError("stopping i-1: UnauthorizedOperation")


def no_console(world: World) -> None:
    """A caller without the permission GetConsoleOutput."""
    world.way_back, world.fails["console"] = ["refused"], CloudError("reading the console: UnauthorizedOperation")


def paused(world: World) -> None:
    """As the local region reports a machine that it paused because the host's disk is full."""
    world.way_back, world.state_reason = (
        ["refused"],
        {"Code": "Server.Paused", "Message": "paused: no space left on /var"},
    )


def taken(world: World) -> None:
    world.way_back, world.state = ["refused"], "terminated"
    world.state_reason = {"Code": "Server.SpotInstanceTermination", "Message": "Server.SpotInstanceTermination"}


BROKEN: list[tuple[Callable[[World], None], str, str, str]] = [
    (break_key, REBOOT, "FAIL", "i-1 (g5.12xlarge) shows another host key than at its first boot"),
    (break_key, STOP_START, "FAIL", "shows another host key"),
    (break_boot, REBOOT, "FAIL", "kernel panic at boot: [    2.1] Kernel panic - not syncing"),
    (break_boot, STOP_START, "FAIL", "kernel panic at boot"),
    (stay_up, REBOOT, "UNPROVEN", "last answer: boot boot-old is still up"),
    (stay_silent, REBOOT, "UNPROVEN", "last answer: 192.0.2.1:22 refuses connections"),
    (refuse_order, REBOOT, "UNPROVEN", "sudo: a password is required"),
    (no_capacity, STOP_START, "UNAVAILABLE", "InsufficientInstanceCapacity"),
    (no_permission, STOP_START, "UNPROVEN", "UnauthorizedOperation"),
    (no_console, REBOOT, "UNPROVEN", "last answer: 192.0.2.1:22 refuses connections"),
    (paused, REBOOT, "UNPROVEN", "does not run: paused: no space left on /var"),
    (taken, STOP_START, "UNPROVEN", "instance i-1 is terminated: Server.SpotInstanceTermination"),
]


@pytest.mark.parametrize(("broken", "how", "verdict", "message"), BROKEN)
def test_who_is_to_blame(
    world: World, monkeypatch: pytest.MonkeyPatch, broken: Any, how: str, verdict: str, message: str
) -> None:
    seconds = 0.2 if broken in (stay_up, stay_silent, no_console) else 30.0
    monkeypatch.setitem(world.place.deadlines, "boot_seconds", seconds)
    broken(world)
    with pytest.raises(GpuAmiError) as caught:
        restart(a_boot(world), a_machine(), how)
    told = restarts.not_back(how, caught.value)
    assert (told.verdict, message in told.message) == (verdict, True), told


def test_panic_of_the_boot_before_is_not_this_ones(world: World) -> None:
    world.console_text += PANIC
    assert restart(a_boot(world), a_machine(), REBOOT).boot_id == "boot-new"
