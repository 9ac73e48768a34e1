"""What a machine consists of: QMP, console, KVM, notices, relays, ports that drop."""

from __future__ import annotations

import json
import socket
import subprocess
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.errors import MachineError
from gpu_ami.files import write_json
from localregion.machines import firewall, platforms
from localregion.machines.firewall import DroppedPort
from localregion.machines.metadata import NOTICE_TAG, build_tree, look_up
from localregion.machines.qemu import Qmp, cap_console, note_on_console, read_console, short_path
from tests.localregion.machines.test_metadata import VIEW
from tests.onhost.drain_hook.programs import hook_module

# QEMU's control socket.


def test_a_socket_that_never_comes(tmp_path: Path) -> None:
    with pytest.raises(MachineError, match="did not open its control socket"):
        Qmp(tmp_path / "qmp.sock", lambda: False)


def test_sockets_may_lie_deep(tmp_path: Path) -> None:
    folder = tmp_path / ("deep" * 40)
    folder.mkdir()
    with socket.socket(socket.AF_UNIX) as server, short_path(folder / "x.sock") as name:
        server.bind(name)
    assert (folder / "x.sock").is_socket()


# The serial console's file.


def test_a_note_of_the_region_is_on_the_console(tmp_path: Path) -> None:
    (tmp_path / "console.log").write_bytes(b"booting")
    note_on_console(tmp_path, "paused: no space left")
    assert read_console(tmp_path) == b"booting\r\n[local region] paused: no space left\r\n"
    note_on_console(tmp_path / "gone", "x")  # no folder: no error


def test_a_console_keeps_its_tail(tmp_path: Path) -> None:
    assert read_console(tmp_path) == b""
    console = tmp_path / "console.log"
    console.write_bytes(b"a" * 900 + b"tail")
    assert read_console(tmp_path, limit=4) == b"tail"
    cap_console(tmp_path, most=1000, keep=10)
    assert console.stat().st_size == 904
    cap_console(tmp_path, most=900, keep=10)
    assert console.read_bytes() == b"aaaaaatail"


# Connections to a dropped port time out, and get through or are refused when it is given up.


ADDRESS = "127.99.7.7"


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind((ADDRESS, 0))
        return int(probe.getsockname()[1])


def test_connections_time_out_and_are_not_refused() -> None:
    port = free_port()
    dropped = DroppedPort(ADDRESS, port)
    for _ in range(3):
        with pytest.raises(TimeoutError):
            socket.create_connection((ADDRESS, port), timeout=0.3)
    dropped.close()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection((ADDRESS, port), timeout=5)


def test_the_port_can_be_used_right_afterwards() -> None:
    port = free_port()
    DroppedPort(ADDRESS, port).close()
    with socket.create_server((ADDRESS, port)):
        socket.create_connection((ADDRESS, port), timeout=5).close()
    DroppedPort(ADDRESS, port).close()


def test_a_port_in_use_is_an_error() -> None:
    with socket.create_server((ADDRESS, 0)) as server, pytest.raises(OSError):
        DroppedPort(ADDRESS, server.getsockname()[1])


# Whether KVM works: judged by booting, remembered until the host boots again.


def fake_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "bin" / "qemu-system-x86_64"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(platforms, "DEVICE", tmp_path)  # a device that can be opened
    monkeypatch.setattr(platforms, "DEADLINE_SECONDS", 2.0)


@pytest.mark.parametrize(
    ("script", "usable"),
    [
        ("echo 'Kernel panic - not syncing: VFS' > console", True),
        ("echo 'Linux version 6' > console", False),  # it ended, but no kernel came to its end
        ("echo 'Kernel panic - not syncing: VFS' > console; exit 1", False),
        ("exec sleep 60", False),  # the guest hangs, as where /dev/kvm is there and does not work
    ],
)
def test_kvm_counts_only_if_a_kernel_ran(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, usable: bool
) -> None:
    fake_qemu(tmp_path, monkeypatch, script)
    remembered = tmp_path / "kvm.json"
    assert platforms.usable(tmp_path / "vmlinuz", remembered) is usable
    assert json.loads(remembered.read_text())["usable"] is usable


def test_the_answer_is_remembered_for_this_boot_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_qemu(tmp_path, monkeypatch, "exit 1")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    remembered = tmp_path / "kvm.json"
    write_json(remembered, {"host_boot": boot, "usable": True})
    assert platforms.usable(tmp_path / "vmlinuz", remembered) is True
    write_json(remembered, {"host_boot": "another", "usable": True})
    assert platforms.usable(tmp_path / "vmlinuz", remembered) is False


def test_no_device_no_kvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platforms, "DEVICE", tmp_path / "nothing")
    assert platforms.usable(tmp_path / "vmlinuz", tmp_path / "kvm.json") is False


# Notices that a tag plants, as the drain hook reads them from the metadata service of an instance.


ALL = ("spot-interruption", "rebalance-recommendation", "autoscaling-termination", "maintenance-event")
notices = hook_module("notices")


class Tree:
    """The metadata of the instance with the tag, without HTTP."""

    def __init__(self, value: str | None) -> None:
        self.tree = build_tree(replace(VIEW, tags={} if value is None else {NOTICE_TAG: value}))

    def get(self, category: str) -> str | None:
        return look_up(self.tree, f"meta-data/{category}")


def test_without_the_tag_there_is_no_notice() -> None:
    assert notices.read(Tree(None), ALL) == ([], [])
    assert Tree(None).get("events/maintenance/scheduled") == "[]"
    assert Tree(None).get("spot/instance-action") is None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("spot-interruption@2026-11-23T10:02:00Z", [("spot-interruption", "terminate", "2026-11-23T10:02:00Z")]),
        ("spot-interruption", [("spot-interruption", "terminate", "2026-11-21T12:00:00Z")]),
        ("rebalance-recommendation@T", [("rebalance-recommendation", "rebalance", "T")]),
        ("autoscaling-termination", [("autoscaling-termination", "terminate", "")]),
        ("maintenance-event@T", [("maintenance-event", "system-reboot", "T")]),
        (
            "maintenance-event@2026-01-06T09:00:43Z",
            [("maintenance-event", "system-reboot", "2026-01-06T09:00:43Z")],
        ),
        ("rebalance-recommendation@T, spot-interruption@U", [
            ("spot-interruption", "terminate", "U"), ("rebalance-recommendation", "rebalance", "T"),
        ]),
        ("nothing-of-the-kind", []),
    ],
)  # fmt: skip
def test_a_planted_notice_is_read(value: str, expected: list[tuple[str, str, str]]) -> None:
    found, problems = notices.read(Tree(value), ALL)
    assert ([tuple(notice[:3]) for notice in found], problems) == (expected, [])


def test_every_planted_category_is_listed() -> None:
    listing = look_up(Tree(",".join(ALL)).tree, "meta-data/") or ""
    assert {"events/", "spot/", "autoscaling/"} <= set(listing.split("\n"))


# Relays: a program per connection, which joins its stdin (a socket) with a service.


def serve(server: socket.socket) -> threading.Thread:
    """Answers one connection with what it was sent, twice, once the sender has finished."""

    def answer() -> None:
        connection, _ = server.accept()
        with connection, connection.makefile("rb") as stream:
            connection.sendall(stream.read() * 2)

    thread = threading.Thread(target=answer, daemon=True)
    thread.start()
    return thread


def talk(program: Path, said: bytes) -> bytes:
    here, there = socket.socketpair()
    with here:
        process = subprocess.Popen([f"./{program.name}"], cwd=program.parent, stdin=there.fileno())
        there.close()
        here.settimeout(20)
        here.sendall(said)
        here.shutdown(socket.SHUT_WR)
        with here.makefile("rb") as stream:
            answer = stream.read()
        assert process.wait(20) == 0
    return answer


@pytest.mark.parametrize("size", [1, 300_000])
def test_a_tcp_relay_carries_both_directions_and_their_ends(tmp_path: Path, size: int) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = serve(server)
        firewall.write_tcp_relay(tmp_path / "to-api", int(server.getsockname()[1]))
        assert talk(tmp_path / "to-api", b"x" * size) == b"xx" * size
        thread.join(20)


def test_a_unix_relay_finds_the_socket_in_its_own_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind("metadata.sock")
        server.listen()
        serve(server)
        firewall.write_unix_relay(tmp_path / "to-metadata", "metadata.sock")
        assert talk(tmp_path / "to-metadata", b"GET") == b"GETGET"
    assert (tmp_path / "to-metadata").stat().st_mode & 0o777 == 0o700
