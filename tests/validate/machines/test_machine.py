"""A machine from its launch to its end: which stage failed, whose fault it is, and what could not be removed."""

from __future__ import annotations

import threading
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from gpu_ami.cloud.security_groups import Ingress
from gpu_ami.errors import CloudError, MachineError, UsageError
from gpu_ami.validate.machines import login, machine
from gpu_ami.validate.machines.machine import Boot
from gpu_ami.validate.machines.restarts import is_at_fault
from tests.validate.conftest import World, a_boot, a_machine


def first_boot(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, seconds: float = 30.0) -> Any:
    monkeypatch.setitem(world.place.deadlines, "boot_seconds", seconds)
    boot = a_boot(world)
    boot.run = SimpleNamespace(key_file=tmp_path / "key", folder=tmp_path)  # type: ignore[assignment]
    world.restarted = True  # `way_back` is what each attempt to reach it finds
    return boot.follow("i-1", "g5.12xlarge")


def test_stages_of_a_boot(world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    world.way_back = ["refused", "refused", "new"]
    booted = first_boot(world, monkeypatch, tmp_path)
    assert list(booted.stages) == ["running", "ssh", "cloud-init", "systemd"]
    assert (booted.url, booted.boot_id, booted.host_key) == ("ssh://admin@192.0.2.1:22", "boot-new", world.next_key)
    assert (tmp_path / "known_hosts.i-1").read_text() == f"192.0.2.1 {world.next_key}\n"


def silent(world: World) -> None: ...


def no_console(world: World) -> None:
    world.fails["console"] = CloudError("reading the console of i-1: UnauthorizedOperation")


def paused(world: World) -> None:
    world.state_reason = {"Code": "Server.Paused", "Message": "paused: no space left on /images"}


def gone(world: World) -> None:
    world.state = "terminated"


def panics(world: World) -> None:
    world.dies = True


@pytest.mark.parametrize(
    ("break_it", "image", "message"),
    [
        (silent, False, "SSH login failed before the deadline\n  last answer: 192.0.2.1:22 refuses connections"),
        (no_console, False, "SSH login failed before the deadline"),
        (paused, False, "does not run: paused: no space left on /images"),
        (gone, False, "is terminated"),
        (panics, True, "kernel panic at boot: [    2.1] Kernel panic"),
    ],
)
def test_boot_that_fails_blames_the_image_only_for_a_panic(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, break_it: Any, image: bool, message: str
) -> None:
    world.way_back = ["refused"]
    break_it(world)
    with pytest.raises(MachineError) as caught:
        first_boot(world, monkeypatch, tmp_path, seconds=0.3)
    assert message in str(caught.value) and is_at_fault(caught.value) is image
    assert ("the last 1 lines of its console" in str(caught.value)) is (break_it not in (no_console, panics))


def test_a_login_that_no_security_group_allows_ends_at_once(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world.way_back = ["silent"]
    started = time.monotonic()
    with pytest.raises(MachineError) as caught:
        first_boot(world, monkeypatch, tmp_path, seconds=60)
    assert time.monotonic() - started < 30
    assert "i-1 (g5.12xlarge): no SSH login: security group sg-1: no rule lets TCP 22 in" in str(caught.value)
    assert caught.value.hint == "allow TCP 22 from this machine's address in one of sg-1"
    assert not is_at_fault(caught.value) and caught.value.exit_code == 4
    assert world.calls.count("ingress") == 1


def test_a_login_without_an_answer_names_who_may_connect(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world.way_back = ["silent"]
    world.ingress = Ingress(("sg-1",), 22, ranges=("10.0.0.0/8",))
    with pytest.raises(MachineError, match="SSH login failed before the deadline") as caught:
        first_boot(world, monkeypatch, tmp_path, seconds=0.3)
    assert "security group sg-1: TCP 22 is allowed from 10.0.0.0/8" in caught.value.details
    assert "one of sg-1" in caught.value.hint and not is_at_fault(caught.value)


NO_DATASOURCE = "[   61.2] cloud-init[588]: Cloud-init v. 22.4.2 finished. Datasource DataSourceNone.  Up 61 seconds\n"
OTHER_USER = "ci-info: +++++Authorized keys from /home/ec2-user/.ssh/authorized_keys for user ec2-user+++++\n"
NO_KEY = "ci-info: no authorized SSH keys fingerprints found for user admin.\n"


@pytest.mark.parametrize("attempts", [["auth"], ["silent", "auth"], ["auth", "silent"]])
@pytest.mark.parametrize(
    ("text", "hint"),
    [
        (NO_DATASOURCE, "cloud-init found no datasource (console: 'DataSourceNone'), so it installed no key"),
        (OTHER_USER, "cloud-init installed the key for ec2-user, not for admin"),
        (NO_KEY, "cloud-init got no key from the metadata service for admin"),
        ("[ 0.0] Linux\n", "evidence/ has the whole console"),
    ],
)
def test_a_machine_that_refuses_the_key_is_not_behind_closed_groups(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, attempts: list[str], text: str, hint: str
) -> None:
    """The last evidence counts: it was "allow TCP 22", although sshd had answered."""
    world.way_back, world.console_text = [*attempts], text
    world.ingress = Ingress(("sg-1",), 22, ranges=("10.0.0.0/8",))
    with pytest.raises(MachineError, match="SSH login failed before the deadline") as caught:
        first_boot(world, monkeypatch, tmp_path, seconds=1.5)
    assert caught.value.hint.startswith(hint)
    assert "security group" not in str(caught.value) and "allow TCP" not in str(caught.value)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("Job systemd-networkd-wait-online.se…tart running (1min 47s / no limit)\n",
         "no login yet: its console shows that it waits for systemd-networkd-wait-online.se (1min 47s / no limit)"),
        ("Job systemd-udev-settle.service/start running (14s / 3min 7s)\n", ""),
        (NO_DATASOURCE, "no login yet: cloud-init found no datasource (console: 'DataSourceNone')"),
    ],
)  # fmt: skip
def test_a_boot_without_a_login_says_once_what_its_console_shows(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str, said: str
) -> None:
    world.way_back, world.console_text = ["refused"], text
    monkeypatch.setattr(machine, "WAIT_SECONDS", 0.0)
    monkeypatch.setattr(login, "LOOK_SECONDS", 0.0)
    spoken: list[str] = []
    monkeypatch.setattr(Boot, "say", lambda _self, _machine, words: spoken.append(words))
    with pytest.raises(MachineError, match="SSH login failed before the deadline"):
        first_boot(world, monkeypatch, tmp_path, seconds=0.5)
    assert [words[: len(said)] for words in spoken] == ([said] if said else [])


@pytest.mark.parametrize("why", ["refused by AWS", "through a program"])
def test_security_groups_are_no_reason_where_they_are_unknown_or_another_connects(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, why: str
) -> None:
    world.way_back = ["silent"]
    if why == "refused by AWS":
        world.fails["ingress"] = CloudError("looking up sg-1: UnauthorizedOperation")
    else:
        monkeypatch.setattr(machine.login, "proxy_command", lambda *_: "ssh -W %h:%p bastion")
    with pytest.raises(MachineError, match="SSH login failed before the deadline") as caught:
        first_boot(world, monkeypatch, tmp_path, seconds=0.3)
    assert "security group" not in str(caught.value)


@pytest.mark.parametrize("interface", ["wifi", "carrier_pigeon"])
def test_interface_that_cannot_be_used_is_refused(interface: str) -> None:
    with pytest.raises(UsageError, match=interface) as caught:
        machine.require_interface(interface)
    assert "private_ip" in caught.value.hint
    machine.require_interface("private_dns")


def test_cancelled_boot_does_not_read_the_console(
    world: World, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    world.way_back = ["refused"]
    run: Any = SimpleNamespace(folder=tmp_path, key_file=tmp_path / "id_ed25519")
    boot = Boot(world, run, "admin", a_boot(world).progress, threading.Event())  # type: ignore[arg-type]
    boot.cancelled.set()
    with pytest.raises(MachineError) as caught:
        boot.follow("i-1", "g5.12xlarge")
    assert "console" not in str(caught.value)


KEYS = (
    "{0}-----BEGIN SSH HOST KEY KEYS-----\r\n{0}{1} root@x\r\n"
    "{0}ecdsa-sha2-nistp256 BBBB root@x\r\n-----END SSH HOST KEY KEYS"
)


@pytest.mark.parametrize(
    ("console", "refused"),
    [
        ("", False),
        ("[    0.0] Linux", False),
        (KEYS.format("", "ssh-ed25519 AAAAfirst"), False),
        (KEYS.format("[ 12.3] cloud-init: ", "ssh-ed25519 AAAAfirst"), False),
        (KEYS.format("", "ssh-rsa CCCC"), False),  # not of the kind that was shown
        (KEYS.format("", "ssh-ed25519 AAAAother"), True),
    ],
)
def test_the_first_host_key_is_the_one_on_the_console(world: World, console: str, refused: bool) -> None:
    world.console_text = console
    boot, reached = a_boot(world), a_machine()
    if refused:
        with pytest.raises(MachineError, match="shows another host key than the machine's console") as caught:
            boot.compare_with_console(reached, "ssh-ed25519 AAAAfirst")
        assert not is_at_fault(caught.value)
    else:
        boot.compare_with_console(reached, "ssh-ed25519 AAAAfirst")
