"""Security groups applied to machines, with a listener in QEMU's place. No QEMU runs here."""

from __future__ import annotations

import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from localregion.backends import ec2_groups
from localregion.backends.ec2_groups import GroupRules, Rule
from localregion.machines.firewall import Firewall
from localregion.machines.qemu import Exit, MachineSpec
from tests.localregion.conftest import World

ADDRESS = "127.99.6.6"
OPEN, CLOSED = Rule("ssh", "127.0.0.0/8"), Rule("443")


class ForwardingMachine:
    """Listens on the forwarded port as QEMU does."""

    def __init__(self, spec: MachineSpec) -> None:
        self.spec, self.ready = spec, True
        self.server: socket.socket | None = None
        self.ended: Exit | None = None
        if not spec.ssh_closed:
            self.open_ssh()

    def open_ssh(self) -> None:
        self.server = socket.create_server((self.spec.address, self.spec.ssh_port))

    def close_ssh(self) -> None:
        assert self.server
        self.server.close()
        self.server = None

    def poll(self) -> Exit | None:
        return self.ended


def answer(port: int) -> str:
    try:
        socket.create_connection((ADDRESS, port), timeout=0.3).close()
    except TimeoutError:
        return "dropped"
    except ConnectionRefusedError:
        return "refused"
    return "open"


@pytest.fixture
def port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


def set_rules(world: World, port: int, *ingress: Rule, egress: tuple[Rule, ...] = (Rule("all"),)) -> None:
    ec2_groups.set_rules(world.ec2.backend, world.ec2.group_id, GroupRules(ingress, egress), port)


@pytest.fixture
def spec(world: World, tmp_path: Path, port: int) -> MachineSpec:
    instance_id = world.launch().id
    relays = (("169.254.169.254", "to-metadata"), ("169.254.169.251", "to-api"), ("169.254.169.252", "to-mirror"))
    return MachineSpec(instance_id, "g5.xlarge", tmp_path, ADDRESS, port, "02:00", 1, 1, False, relays=relays)


@contextlib.contextmanager
def powered_on(world: World, spec: MachineSpec) -> Iterator[tuple[Firewall, Any]]:
    firewall = Firewall(world.ec2)
    machine: Any = ForwardingMachine(firewall.before_power_on(spec))
    firewall.powered_on(machine)
    try:
        yield firewall, machine
    finally:
        firewall.forget(spec.instance_id)
        if machine.server:
            machine.close_ssh()


@pytest.mark.parametrize(("rule", "expected"), [(OPEN, "open"), (CLOSED, "dropped")])
def test_a_machine_is_powered_on_with_what_its_groups_allow(
    world: World, spec: MachineSpec, port: int, rule: Rule, expected: str
) -> None:
    set_rules(world, port, rule)
    with powered_on(world, spec):
        assert answer(port) == expected
    assert answer(port) == "refused"


def test_rules_that_change_are_followed(world: World, spec: MachineSpec, port: int) -> None:
    set_rules(world, port, OPEN)
    with powered_on(world, spec) as (firewall, _):
        for rule, expected in ((CLOSED, "dropped"), (CLOSED, "dropped"), (OPEN, "open"), (OPEN, "open")):
            set_rules(world, port, rule)
            firewall.apply()
            assert answer(port) == expected


def test_a_port_that_is_not_free_yet_is_taken_in_the_next_round(world: World, spec: MachineSpec, port: int) -> None:
    set_rules(world, port, OPEN)
    with powered_on(world, spec) as (firewall, machine):
        slow, machine.close_ssh = machine.server, lambda: None  # QEMU's answer is not waited for
        set_rules(world, port, CLOSED)
        firewall.apply()
        assert answer(port) == "open"
        slow.close()
        machine.server = None
        firewall.apply()
        assert answer(port) == "dropped"


def test_a_machine_that_has_ended_is_told_nothing(world: World, spec: MachineSpec, port: int) -> None:
    set_rules(world, port, OPEN)
    with powered_on(world, spec) as (firewall, machine):
        machine.ended = Exit("shutdown")
        set_rules(world, port, CLOSED)
        firewall.apply()
        assert machine.server is not None


@pytest.mark.parametrize(
    ("egress", "left"),
    [
        ((Rule("all"),), ["to-metadata", "to-api", "to-mirror"]),
        ((), ["to-metadata"]),  # as on EC2: groups do not filter the metadata service
        ((Rule("443"),), ["to-metadata"]),
        ((Rule("80", "169.254.169.251/32"),), ["to-metadata", "to-api"]),
    ],
)
def test_the_guest_has_the_ways_out_that_its_groups_allow(
    world: World, spec: MachineSpec, port: int, egress: tuple[Rule, ...], left: list[str]
) -> None:
    set_rules(world, port, OPEN, egress=egress)
    firewall = Firewall(world.ec2)
    assert [program for _, program in firewall.before_power_on(spec).relays] == left
    firewall.forget(spec.instance_id)
