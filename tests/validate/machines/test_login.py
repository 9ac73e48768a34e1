"""The end of a boot: which answers it waits out, and what ends it with an error."""

from __future__ import annotations

import json
import re
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.errors import CapacityError, MachineError
from gpu_ami.validate.machines import deadlines, hanging, login
from gpu_ami.validate.machines.restarts import ImageAtFault, LoginFailed, is_at_fault
from tests.scripted_host import ScriptedConnection
from tests.validate.conftest import PANIC, World
from validator.transport import Target
from validator.transport.ssh import CommandExpired, ConnectionDropped

ROOT = Path(__file__).parents[3]


def busy(*answers: str | Exception, waits: str = "") -> Any:
    """A connection that answers one text after the other. waits: what systemd says of its queue."""
    left = list(answers)
    return ScriptedConnection(lambda command: waits if command.startswith("cat /proc/uptime") else left.pop(0))


def settle(*answers: str | Exception, seconds: float = 30.0) -> list[str]:
    marked: list[str] = []
    until = time.monotonic() + seconds
    login.settle(
        busy(*answers), "i-1", (login.SYSTEMD,), until, threading.Event(), listener=login.BootListener(marked.append)
    )  # type: ignore[arg-type]
    return marked


def test_slow_answer_is_no_end(world: World) -> None:
    slow = CommandExpired("systemctl is-system-running", 60)
    assert settle("starting", slow, "degraded") == ["systemd"]  # how it ended is for the checks to judge


@pytest.mark.parametrize(
    ("answers", "message"),
    [
        (("starting",), "i-1: systemd did not complete\n  $ systemctl is-system-running\n  starting"),
        ((CommandExpired("systemctl is-system-running", 60),), "did not complete within 60 s"),
        (
            (ConnectionDropped("it ended the connection"),),
            "i-1: the connection was lost during the boot\n  it ended the connection",
        ),
    ],
)
def test_boot_without_an_end_says_where_it_stopped(world: World, answers: Any, message: str) -> None:
    with pytest.raises(MachineError) as caught:
        settle(*answers, seconds=-1.0)
    assert message in str(caught.value)


def await_cloud_init(folder: Path) -> str:
    """Output of the command with `folder` as /run/cloud-init and a `cloud-init` that says what it was asked."""
    program = folder.parent / "bin" / "cloud-init"
    program.parent.mkdir()
    program.write_text('#!/bin/sh\necho "asked: $*"\n')
    program.chmod(0o755)
    command = login.CLOUD_INIT.script.replace("/run/cloud-init", str(folder))
    environment = {"PATH": f"{program.parent}:/usr/bin:/bin"}
    return subprocess.run(["sh", "-c", command], env=environment, capture_output=True, text=True, check=True).stdout


def test_end_of_cloud_init_is_seen_without_its_program(tmp_path: Path) -> None:
    """Each `cloud-init status` takes seconds of an emulated processor, from the boot that is waited for."""
    folder = tmp_path / "run"
    folder.mkdir()
    threading.Timer(0.2, (folder / "result.json").touch).start()
    assert await_cloud_init(folder) == "status: done\n"


@pytest.mark.parametrize("state", ["absent", "disabled"])
def test_cloud_init_that_does_not_run_is_asked(tmp_path: Path, state: str) -> None:
    folder = tmp_path / "run"
    if state == "disabled":
        folder.mkdir()
        (folder / "disabled").touch()
    assert await_cloud_init(folder) == "asked: status\n"


def test_panic_that_only_the_console_tail_shows_is_the_images(world: World) -> None:
    error = MachineError("i-1: SSH login failed", details=[f"| {PANIC}"])
    assert is_at_fault(error) and is_at_fault(ImageAtFault("x")) and not is_at_fault(CapacityError("none"))


WAITS = """241.50 900.00

 7 multi-user.target start waiting
55 {unit} start running

Id={unit}
ActiveState=activating
SubState=start-pre
InactiveExitTimestampMonotonic=13500000
TimeoutStartUSec=15min
DropInPaths=/etc/systemd/system/{unit}.d/wait.conf
"""


@pytest.mark.parametrize(
    ("unit", "kind", "message"),
    [
        ("nvidia-fabricmanager.service", ImageAtFault, "the boot hangs in nvidia-fabricmanager.service"),
        (
            "systemd-networkd-wait-online.service",
            MachineError,
            "did not complete: it waits for systemd-networkd-wait",
        ),
    ],
)
def test_boot_that_hangs_names_its_unit(world: World, unit: str, kind: type[MachineError], message: str) -> None:
    """Only a unit of the image's roles blames the image: another may wait for the place."""
    machine = busy("starting", waits=WAITS.format(unit=unit))
    with pytest.raises(MachineError) as caught:
        login.settle(
            machine,
            "i-1",
            (login.SYSTEMD,),
            time.monotonic() - 1,
            threading.Event(),
            listener=login.BootListener(lambda _: None),
        )  # type: ignore[arg-type]
    text = str(caught.value)
    assert type(caught.value) is kind and message in text and is_at_fault(caught.value) is (kind is ImageAtFault)
    assert "activating (start-pre) for 228 s, TimeoutStartSec 15min, drop-ins: /etc/systemd/system/" in text
    assert "systemctl list-jobs: 1 more wait: multi-user.target" in text


OWNED = """
Id=nvidia-fabricmanager.service
ActiveState=activating
FragmentPath=/lib/systemd/system/nvidia-fabricmanager.service

Id=kubelet.service
ActiveState=activating
FragmentPath=/etc/systemd/system/kubelet.service

Id=nvidia-clocks.service
ActiveState=activating
FragmentPath=/etc/systemd/system/nvidia-clocks.service

Id=ssh.service
ActiveState=activating
FragmentPath=/lib/systemd/system/ssh.service
DropInPaths=/etc/systemd/system/ssh.service.d/own.conf

Id=chrony.service
ActiveState=activating
FragmentPath=/lib/systemd/system/chrony.service

Id=nvidia-fabricmanager.service
Package=nvidia-fabricmanager

Id=chrony.service
Package=chrony
"""


def test_the_plan_decides_whose_unit_it_is() -> None:
    """Planned packages and the files of roles; a unit of the base AMI may wait for the place, whatever its name."""
    plan = json.loads((ROOT / "variables/locks/debian12-gpu.json").read_text(encoding="utf-8"))["plan"]
    units = hanging.ImageUnits.of(plan, ["fabric_manager", "tuning"], [ROOT / "roles"])
    waiting = hanging.parse("100.0 1.0\n\n\n\n" + OWNED)
    assert [unit.unit for unit in waiting.units if units.has(unit)] == [
        "nvidia-fabricmanager.service", "nvidia-clocks.service",
    ]  # fmt: skip
    of_names = [unit.unit for unit in waiting.units if hanging.ImageUnits().has(unit)]
    assert of_names == ["nvidia-fabricmanager.service", "kubelet.service", "nvidia-clocks.service"]
    with_drop_in = hanging.ImageUnits(files=("/etc/systemd/system/ssh.service.d/*.conf",))
    assert [unit.unit for unit in waiting.units if with_drop_in.has(unit)] == ["ssh.service"]


def test_what_a_boot_waits_for_is_said_while_it_waits(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(login, "WAIT_SECONDS", 0.0)
    said: list[str] = []
    machine = busy("starting", "starting", "running", waits=WAITS.format(unit="nvidia-fabricmanager.service"))
    listener = login.BootListener(lambda _: None, say=said.append)
    login.settle(machine, "i-1", (login.SYSTEMD,), time.monotonic() + 30, threading.Event(), listener=listener)  # type: ignore[arg-type]
    assert len(said) == 1 and said[0].startswith(
        "waits for nvidia-fabricmanager.service: activating (start-pre) for 228 s"
    )


@pytest.mark.parametrize(("boot_seconds", "expected"), [(900.0, 900.0), (None, 1200.0)])
def test_reboot_of_a_host_has_the_caller_s_deadline(
    monkeypatch: pytest.MonkeyPatch, boot_seconds: float | None, expected: float
) -> None:
    """`--host --reboot --deadline boot=900`; else that of the instance type (facts/deadlines.yml)."""
    waited: list[float] = []

    def reach(_target: object, deadline: float, *_: object, **__: object) -> None:
        waited.append(deadline - time.monotonic())
        raise LoginFailed("no login")

    monkeypatch.setattr(login, "order_reboot", lambda *_: ("boot-1", "ssh-ed25519 AAAA"))
    monkeypatch.setattr(login, "reach", reach)
    with pytest.raises(LoginFailed):
        login.reboot_host(Target("10.0.0.7"), threading.Event(), "g5.xlarge", boot_seconds)
    assert waited == [pytest.approx(expected, abs=5)]


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        ("A start job is running for NVIDIA fabric manager service (3min 4s / 15min)\r\n",
         "NVIDIA fabric manager service (3min 4s / 15min)"),
        # systemd 252 of Debian 12 and AL2023; the console has 80 columns.
        ("(1 of 3) Job dev-ttyS0.device/start running (14s / 1min 30s)", "dev-ttyS0.device (14s / 1min 30s)"),
        ("\x1b[0mJob systemd-networkd-wait-online.se…tart running (1min 47s / no limit)\r\r\n",
         "systemd-networkd-wait-online.se (1min 47s / no limit)"),
        ("Job nvidia-fabricmanager.service/start running (9min 2s / no limit): Configuring",
         "nvidia-fabricmanager.service (9min 2s / no limit)"),
        ("Job cloud-final.service/start running (9s / no limit)\r\n\r\nip-10-0-0-7 login: ", "None"),
    ],
)  # fmt: skip
def test_console_names_the_job_that_a_boot_without_a_login_waits_for(lines: str, expected: str) -> None:
    earlier = "[  OK  ] Started x\r\n\x1b[K[ ***  ] A start job is running for Wait for Network (3s / 2min)\r"
    assert str(hanging.on_console(f"{earlier}\x1b[K[***   ] {lines}")) == expected
    assert hanging.on_console("[  OK  ] Started x") is None


@pytest.mark.parametrize(
    ("time", "seconds"),
    [("9s / 3min 5s", 9), ("1min 47s / no limit", 107), ("1h 2min 3s / no limit", 3723), ("soon", 0)],
)
def test_seconds_of_a_job_on_the_console(time: str, seconds: int) -> None:
    assert hanging.ConsoleJob("x.service", time).seconds == seconds


def test_machine_without_pending_units_waits_for_nothing() -> None:
    assert hanging.parse("12.0 20.0\n\n\n\n").lines() == []
    assert hanging.parse("no systemd").lines() == []


def test_deadlines_cover_the_limits_of_the_roles_units() -> None:
    """Else a unit that hangs is cut off before systemd names it."""
    root = Path(__file__).parents[3]
    limits = []
    for path in (root / "roles").rglob("*.service*"):
        for value, unit in re.findall(r"^TimeoutStartSec=(\d+)(min)?$", path.read_text(encoding="utf-8"), re.MULTILINE):
            limits.append(int(value) * (60 if unit else 1))
    assert max(limits) >= 900
    for instance_type in ("g6.xlarge", "p4d.24xlarge", "p5.48xlarge", "p6-b200.48xlarge", "g5.metal"):
        assert deadlines(instance_type).boot_seconds >= max(limits) + 300
