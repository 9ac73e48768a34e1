"""A machine's command line, how its end is told, and its console file. No QEMU runs here."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest

from gpu_ami.errors import MachineError, UsageError
from localregion.machines.boards import Board
from localregion.machines.firmware import Boot
from localregion.machines.platforms import PLATFORMS
from localregion.machines.qemu import (
    Exit,
    MachineSpec,
    QemuMachine,
    command_line,
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


def test_an_arm64_image_is_on_a_machine_with_its_firmware(spec: MachineSpec) -> None:
    command = command_line(replace(spec, architecture="arm64"))
    assert options(command, "-machine")[0].startswith("virt") and options(command, "-cpu") == ["neoverse-n1"]
    assert options(command, "-bios") == [
        PLATFORMS["arm64"].firmware
    ]  # without it no SMBIOS, by which cloud-init finds EC2
    assert "manufacturer=Amazon EC2" in options(command, "-smbios")[0]
    assert any("ivshmem-plain" in device and "addr=0x1e.0x0" in device for device in options(command, "-device"))
    assert options(command_line(spec), "-bios") == []
    board_of_the_bridge = replace(spec, boards=(Board(0, "0000:00:1f.0", {}),))
    with pytest.raises(UsageError, match="slot 1f of bus 00"):
        command_line(board_of_the_bridge)
    assert "ivshmem" in " ".join(command_line(replace(board_of_the_bridge, architecture="arm64")))


def test_the_image_s_own_command_line_is_booted(spec: MachineSpec) -> None:
    command = command_line(spec)
    assert options(command, "-append")[0].startswith("root=/dev/vda1 ro")
    assert options(command_line(replace(spec, kvm=True)), "-append") == ["root=/dev/vda1 ro"]
    assert options(command, "-kernel") + options(command, "-initrd") == ["vmlinuz", "initrd.img"]
    assert "-kernel" not in command_line(replace(spec, boot=None))


def test_acceleration_only_where_it_was_found(spec: MachineSpec) -> None:
    assert options(command_line(spec), "-accel")[0].startswith("tcg")
    assert options(command_line(replace(spec, kvm=True)), "-accel") == ["kvm"]


def test_emulated_processors_do_not_copy_byte_by_byte(spec: MachineSpec) -> None:
    assert {"erms=off", "fsrm=off"} <= set(
        options(command_line(spec), "-cpu")[0].split(",")
    )  # the second needs the first
    assert options(command_line(replace(spec, kvm=True)), "-cpu") == ["host"]


def test_emulated_processors_run_no_machines_of_their_own(spec: MachineSpec) -> None:
    """As virtual instances of EC2; with the feature udev loads KVM at each boot."""
    assert "svm=off" in options(command_line(spec), "-cpu")[0].split(",")


def test_emulated_machines_do_not_have_kernel_options_that_checks_judge(spec: MachineSpec) -> None:
    added = options(command_line(spec), "-append")[0].removeprefix("root=/dev/vda1 ro").split()
    assert "cryptomgr.notests" in added
    judged = {"mitigations", "apparmor", "audit", "pti", "spectre_v2", "module.sig_enforce", "nokaslr", "nopti"}
    assert not {option.partition("=")[0] for option in added} & judged  # validator/checks/inventory.py


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


_NO_SPACE = """\
say({"event": "BLOCK_IO_ERROR", "data": {"device": "root", "operation": "write", "action": "stop", "nospace": True}})
"""
_STOP = """\
say({"event": "STOP"})
"""
_RESUME = """\
def answer_until(command, status):
    while (said := json.loads(lines.readline())["execute"]) != command:
        assert said == "query-status"
        say({"return": {"running": status == "running", "status": status}})
answer_until("cont", "io-error")
say({"event": "RESUME"})
answer_until("system_powerdown", "running")
sys.exit("powered down")
"""


@pytest.mark.parametrize(
    ("script", "stopped_by"),
    [(_NO_SPACE + _STOP, "no space"), (_STOP, "I/O error"), (_NO_SPACE.replace("True", "False") + _STOP, "I/O error")],
)
def test_a_guest_stopped_by_a_full_disk_is_seen_and_resumed(
    spec: MachineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, stopped_by: str
) -> None:
    fake_qemu(tmp_path, monkeypatch, _QMP + script + _RESUME)
    changed = threading.Event()
    machine = QemuMachine(spec, changed.set)

    def wait_for(expected: str) -> None:
        while machine.stopped_by != expected:
            assert changed.wait(20)
            changed.clear()

    wait_for(stopped_by)
    machine.resume()
    wait_for("")
    machine.power_down()
    machine.process.wait(20)
    assert machine.poll() == Exit("died", "QEMU ended with 1; powered down")


def test_an_error_that_the_guest_gets_stops_nothing(
    spec: MachineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reported = _NO_SPACE.replace('"stop"', '"report"')
    fake_qemu(tmp_path, monkeypatch, _QMP + reported)
    machine = QemuMachine(spec, lambda: None)
    machine.process.wait(20)
    machine.poll()
    assert machine.stopped_by == ""


def test_a_machine_killed_by_the_host_names_memory(
    spec: MachineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_qemu(tmp_path, monkeypatch, "import os; os.kill(os.getpid(), 9)")
    machine = QemuMachine(spec, lambda: None)
    machine.process.wait(20)
    ended = machine.poll()
    assert ended is not None and ended.cause == "died"
    assert "the kernel does when memory is full: it needs 2048 MiB, " in ended.detail
    assert ended.detail.endswith(" MiB are available now")


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


def test_a_closed_ssh_port_is_not_forwarded(spec: MachineSpec) -> None:
    network = options(command_line(replace(spec, ssh_closed=True)), "-netdev")[0]
    assert "hostfwd" not in network and "guestfwd" in network


def test_the_ssh_port_is_opened_and_closed(spec: MachineSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = _QMP + 'open("told", "w").write(lines.readline() + lines.readline())'
    fake_qemu(tmp_path, monkeypatch, script)
    ready = threading.Event()
    machine = QemuMachine(spec, ready.set)
    assert ready.wait(20)
    machine.close_ssh()
    machine.open_ssh()
    machine.process.wait(20)
    told = [json.loads(line) for line in (tmp_path / "told").read_text().splitlines()]
    assert {row["execute"] for row in told} == {"human-monitor-command"}
    assert [row["arguments"]["command-line"] for row in told] == [
        "hostfwd_remove net0 tcp:127.20.0.4:2222",
        "hostfwd_add net0 tcp:127.20.0.4:2222-:22",
    ]
