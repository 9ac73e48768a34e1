"""A host and a cloud that follow a script, for restarts alone and for proofs around them."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud import Capacity, Place
from gpu_ami.cloud import login as temporary_keys
from gpu_ami.cloud.security_groups import Ingress
from gpu_ami.errors import GpuAmiError
from gpu_ami.progress import Progress
from gpu_ami.validate import validator_process
from gpu_ami.validate.machines import login, machine
from gpu_ami.validate.machines.machine import Boot, Machine
from gpu_ami.validate.validator_process import Target
from tests.validate.scripted_proof import JUDGED, RUN, WAITS
from validator.transport import ssh
from validator.transport.ssh import AuthRefused, ConnectionDropped, Finished, HostKeyChanged, HostRefused, HostSilent

PANIC = "[    2.1] Kernel panic - not syncing: VFS: Unable to mount root fs on unknown-block(0,0)\n"


@dataclass
class World:
    """A host and the EC2 around it. way_back: what each attempt to reach it finds after the order to restart."""

    way_back: list[str] = field(default_factory=lambda: ["old", "refused", "new"])
    key: str = "ssh-ed25519 AAAAfirst"
    next_key: str = "ssh-ed25519 AAAAfirst"
    order: tuple[int, str] | None = (0, "")  # exit status and output of `systemctl reboot`; None: the line drops
    console_text: str = "[ 0.0] Linux\n"
    dies: bool = False
    calls: list[str] = field(default_factory=list)
    targets: list[ssh.Target] = field(default_factory=list)
    fails: dict[str, GpuAmiError] = field(default_factory=dict)
    restarted: bool = False
    state: str = "running"
    state_reason: dict[str, str] = field(default_factory=dict)
    unstoppable: str = ""
    ingress: Ingress = field(default_factory=lambda: Ingress(("sg-1",), 22))

    # EC2

    place = Place("aws", "us-east-1", log_groups="production", capacity=Capacity(start_minutes=0))

    def _call(self, name: str) -> None:
        self.calls.append(name)
        if name in self.fails:
            raise self.fails[name]

    def launched_at(self, _instance_id: str) -> float:
        return time.monotonic()

    def cannot_stop(self, _instance_id: str) -> str:
        return self.unstoppable

    def stop(self, instance_id: str) -> None:
        self._call("stop")

    def start(self, instance_id: str) -> None:
        self._call("start")
        self.restarted = True

    def wait_for_state(self, instance_id: str, wanted: str, *_: Any) -> dict[str, str]:
        self._call(wanted)
        return {"InstanceId": instance_id, "PublicIpAddress": "192.0.2.2" if "start" in self.calls else "192.0.2.1"}

    def instance(self, instance_id: str) -> dict[str, Any]:
        return {"InstanceId": instance_id, "State": {"Name": self.state}, "StateReason": self.state_reason}

    def ingress_of_instance(self, instance_id: str) -> Ingress:
        self._call("ingress")
        return self.ingress

    def console(self, instance_id: str) -> str:
        if "console" in self.fails:
            raise self.fails["console"]
        return self.console_text + (PANIC if self.dies and self.restarted else "")

    # SSH

    def connect(self, target: ssh.Target) -> Any:
        self.targets.append(target)
        step = "old"
        if self.restarted:
            step = self.way_back[0]
            self.way_back[:] = self.way_back[1:] or self.way_back
        if step == "silent":
            raise HostSilent("192.0.2.1:22 did not answer within 10 s")
        if step == "auth":
            raise AuthRefused("192.0.2.1:22 rejects the key of admin")
        if step == "refused":
            raise HostRefused("192.0.2.1:22 refuses connections")
        key = self.next_key if step == "new" else self.key
        if " " in target.host_key and target.host_key != key:
            raise HostKeyChanged("root@192.0.2.1:22 shows another host key")
        return Line(self, step, key)


@dataclass
class Line:
    """A connection to one boot."""

    world: World
    boot: str
    host_key: str

    def __enter__(self) -> Line:
        return self

    def __exit__(self, *_: object) -> None: ...
    def close(self) -> None: ...

    def run(self, command: str, timeout: float) -> Finished:
        if "boot_id" in command:
            return Finished(0, f"boot-{self.boot}\n".encode(), b"", 0.0)
        if "systemctl reboot" in command:
            self.world.calls.append("reboot")
            if self.world.order is None:
                self.world.restarted = True
                raise ConnectionDropped("it ended the connection")
            rc, said = self.world.order
            self.world.restarted = rc == 0
            return Finished(rc, b"", said.encode(), 0.0)
        return Finished(0, b"running\n", b"", 0.0)


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World()
    monkeypatch.setattr(ssh, "connect", lambda target: made.connect(target))
    monkeypatch.setattr(login, "POLL_SECONDS", 0.0)
    yield made


def a_machine(known_hosts: Path = Path("/dev/null")) -> Machine:
    where = ("i-1", "g5.12xlarge", "192.0.2.1", 22, "admin", Path("key"), known_hosts)
    return Machine(*where, {"ssh": 60.0}, "boot-old", "ssh-ed25519 AAAAfirst")


def a_boot(world: World) -> Boot:
    return Boot(world, SimpleNamespace(), "admin", Progress("quiet"), threading.Event())  # type: ignore[arg-type]


@pytest.fixture
def booted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Machines that are there as soon as they are launched."""

    def follow(_: Any, instance_id: str, instance_type: str) -> Machine:
        return replace(a_machine(), instance_id=instance_id, instance_type=instance_type)

    monkeypatch.setattr(temporary_keys, "make_key", lambda run: "ssh-ed25519 AAAA")
    monkeypatch.setattr(RUN, "folder", tmp_path)
    monkeypatch.setattr(machine.Boot, "follow", follow)


@pytest.fixture
def waiting(booted: None, monkeypatch: pytest.MonkeyPatch) -> None:
    def command_line(target: Target, folder: Path, *_: Any, **__: Any) -> list[str]:
        return [sys.executable, "-c", WAITS, str(folder), JUDGED]

    monkeypatch.setattr(validator_process, "command_line", command_line)
