"""A machine's command line, how its end is told, and its console file. No QEMU runs here."""

from __future__ import annotations

import json
import socket
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gpu_ami.errors import MachineError
from gpu_ami.local.boards import Board
from gpu_ami.local.firmware import Boot
from gpu_ami.local.qemu import (
    Exit,
    MachineSpec,
    QemuMachine,
    Qmp,
    cap_console,
    command_line,
    read_console,
    short_path,
)


@pytest.fixture
def spec(tmp_path: Path) -> MachineSpec:
    return MachineSpec(
        instance_id="i-0123456789abcdef0",
        instance_type="g5.12xlarge",
        folder=tmp_path,
        address="127.20.0.4",
        ssh_port=2222,
        mac="02:00:00:00:00:01",
        memory_mib=2048,
        vcpus=2,
        kvm=False,
        boot=Boot(tmp_path / "vmlinuz", tmp_path / "initrd.img", "root=/dev/vda1 ro"),
        boards=(Board(0, "0000:00:1e.0", {}),),
        relays=(("169.254.169.254", "to-metadata"), ("169.254.169.251", "to-api")),
    )


def options(command: list[str], name: str) -> list[str]:
    return [value for key, value in pairwise(command) if key == name]


def test_the_guest_cannot_get_out(spec: MachineSpec) -> None:
    network = options(command_line(spec), "-netdev")[0].split(",")
    assert "restrict=on" in network
    assert "hostfwd=tcp:127.20.0.4:2222-:22" in network
    assert "guestfwd=tcp:169.254.169.254:80-cmd:./to-metadata" in network
    assert "guestfwd=tcp:169.254.169.251:80-cmd:./to-api" in network


def test_the_guest_looks_like_ec2(spec: MachineSpec) -> None:
    system = options(command_line(spec), "-smbios")[0]
    assert "manufacturer=Amazon EC2,product=g5.12xlarge,uuid=ec2" in system
    assert spec.system_uuid == replace(spec, memory_mib=1).system_uuid
    assert spec.system_uuid != replace(spec, instance_id="i-2").system_uuid


def test_the_image_s_own_command_line_is_booted(spec: MachineSpec) -> None:
    command = command_line(spec)
    assert options(command, "-append") == ["root=/dev/vda1 ro"]
    assert options(command, "-kernel") + options(command, "-initrd") == ["vmlinuz", "initrd.img"]
    assert "-kernel" not in command_line(replace(spec, boot=None))


def test_acceleration_only_where_it_was_found(spec: MachineSpec) -> None:
    assert options(command_line(spec), "-accel")[0].startswith("tcg")
    assert options(command_line(replace(spec, kvm=True)), "-accel") == ["kvm"]


def test_files_are_named_relative_to_the_folder(spec: MachineSpec) -> None:
    assert str(spec.folder) not in " ".join(command_line(spec))


def fake_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    """A program on the PATH that QemuMachine takes for QEMU."""
    program = tmp_path / "bin" / "qemu-system-x86_64"
    program.parent.mkdir()
    program.write_text(f"#!/usr/bin/env python3\n{script}")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")


_QMP = """\
import json, socket, sys
server = socket.socket(socket.AF_UNIX); server.bind("qmp.sock"); server.listen()
client, _ = server.accept()
lines = client.makefile("r")  # not "rw": writing to such a file drops what it has read ahead
def say(x): client.sendall(json.dumps(x).encode() + b"\\n")
say({"QMP": {}})
assert json.loads(lines.readline())["execute"] == "qmp_capabilities"
say({"return": {}})
"""


@pytest.mark.parametrize(
    ("script", "exit_"),
    [
        (_QMP + 'say({"event": "SHUTDOWN", "data": {"guest": True, "reason": "guest-shutdown"}})', Exit("shutdown")),
        (_QMP + 'say({"event": "SHUTDOWN", "data": {"guest": True, "reason": "guest-reset"}})', Exit("reset")),
        (_QMP + "sys.exit('cannot do that')", Exit("died", "QEMU ended with 1; cannot do that")),
        ("import sys; sys.exit('no such option')", Exit("died", "QEMU ended with 1; no such option")),
    ],
)
def test_how_a_machine_ended(
    spec: MachineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, exit_: Exit
) -> None:
    fake_qemu(tmp_path, monkeypatch, script)
    machine = QemuMachine(spec, lambda: None)
    machine.process.wait(20)
    assert machine.poll() == exit_


def test_the_power_button_is_pressed(spec: MachineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = _QMP + 'open("told", "w").write(json.loads(lines.readline())["execute"])'
    fake_qemu(tmp_path, monkeypatch, script)
    ready = threading.Event()
    machine = QemuMachine(spec, ready.set)
    assert ready.wait(20)
    machine.power_down()
    machine.process.wait(20)
    assert (tmp_path / "told").read_text() == "system_powerdown"


def test_a_killed_machine_is_gone(spec: MachineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_qemu(tmp_path, monkeypatch, "import time; time.sleep(60)")
    machine = QemuMachine(spec, lambda: None)
    identity = machine.identity
    assert identity is not None and identity.alive()
    recorded = json.loads((tmp_path / "process.json").read_text())
    assert recorded == {"pid": identity.pid, "started": identity.started}
    machine.kill()
    assert not identity.alive()
    assert machine.poll() == Exit("died", "QEMU ended with -9")


def test_a_machine_that_does_not_answer_yet_says_so(
    spec: MachineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_qemu(tmp_path, monkeypatch, "import time; time.sleep(60)")
    machine = QemuMachine(spec, lambda: None)
    with pytest.raises(MachineError, match="does not answer yet"):
        machine.power_down()
    machine.kill()


def test_a_socket_that_never_comes(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="did not open its control socket"):
        Qmp(tmp_path / "qmp.sock", lambda: False)


def test_sockets_may_lie_deep(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 40)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server, short_path(folder / "x.sock") as name:
        server.bind(name)
    assert (folder / "x.sock").is_socket()


def test_a_console_keeps_its_tail(tmp_path: Path) -> None:
    assert read_console(tmp_path) == b""
    console = tmp_path / "console.log"
    console.write_bytes(b"a" * 900 + b"tail")
    assert read_console(tmp_path, limit=4) == b"tail"
    cap_console(tmp_path, most=1000, keep=10)
    assert console.stat().st_size == 904
    cap_console(tmp_path, most=900, keep=10)
    assert console.read_bytes() == b"aaaaaatail"
