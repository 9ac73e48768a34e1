"""A builder in a sandbox: its disk is grown, mounted, written by whoever logs in, and complete when it is off.

The disk of these tests has the few programs that a login needs, copied from this host.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import struct
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.errors import MachineError
from localregion.images import base_image
from localregion.machines import PROCESS, Exit
from localregion.sandbox.builder import BuilderSpec, Sandboxes, SandboxMachine, grow, unusable
from tests.localregion.conftest import World
from tests.waiting import until

mounts = pytest.mark.skipif(os.geteuid() != 0, reason="only root may mount and enter namespaces")
MIB = 1024**2
_PROGRAMS = (
    "sh", "env", "cat", "id", "touch", "head", "rm", "sync", "sleep", "uname", "chown", "chmod", "ssh-keygen",
    "systemd-tmpfiles", "/usr/sbin/sshd", "/usr/sbin/grub-probe",
)  # fmt: skip
_ACCOUNTS = {
    "etc/passwd": "root:x:0:0::/root:/bin/sh\nsshd:x:100:100::/run/sshd:/bin/false\n"
    "tester:x:1000:1000::/home/tester:/bin/sh\n",
    "etc/group": "root:x:0:\nsshd:x:100:\ntester:x:1000:\n",
    "etc/shadow": "root:*:19000::::::\nsshd:*:19000::::::\ntester:*:19000::::::\n",
    "etc/ssh/sshd_config": "StrictModes no\nUsePAM no\n",
    "etc/sudoers.d/README": "",
    "etc/cloud/cloud.cfg": "system_info: {default_user: {name: tester, shell: /bin/sh, sudo: ['ALL=(ALL) ALL']}}\n",
    "boot/vmlinuz-6.1.0-9-test": "",
    "boot/grub/grub.cfg": "menuentry 'Linux' {\n\tlinux /boot/vmlinuz root=UUID=1 ro console=ttyS0\n}\n",
    "usr/lib/tmpfiles.d/test.conf": "d /var/lib/of-the-boot 0755 root root -\nF! /run/nologin 0644 - - - booting\n",
}


def file_system(disk: Path, field: str) -> str:
    shown = subprocess.run(
        ["dumpe2fs", "-h", f"{disk}?offset={base_image.PARTITION_OFFSET}"], capture_output=True, text=True, check=True
    )
    found = re.search(rf"(?m)^{field}:\s+(.*)$", shown.stdout)
    assert found
    return found[1]


def make_disk(disk: Path, tree: Path | None = None, size: int = 96 * MIB) -> None:
    disk.write_bytes(base_image.mbr(2048, (size - MIB) // 512))
    os.truncate(disk, size)
    content = ["-d", str(tree)] if tree else []
    offset = f"offset={base_image.PARTITION_OFFSET}"
    mke2fs = [
        "mke2fs",
        "-q",
        "-t",
        "ext4",
        "-b",
        "4096",
        *content,
        "-E",
        offset,
        "-F",
        str(disk),
        f"{size // 1024 - 1024}k",
    ]
    subprocess.run(mke2fs, check=True, capture_output=True)


def test_the_file_system_fills_the_disk(tmp_path: Path) -> None:
    disk = tmp_path / "disk.raw"
    make_disk(disk)
    os.truncate(disk, 160 * MIB)
    for _ in range(2):
        grow(disk)
        assert disk.stat().st_size == 160 * MIB
        assert int(file_system(disk, "Block count")) == 159 * MIB // 4096
        assert struct.unpack("<I", disk.read_bytes()[458:462]) == (159 * MIB // 512,)


def test_a_launch_without_a_key_pair_is_refused(world: World, tmp_path: Path) -> None:
    view = replace(world.ec2.view(world.launch()), public_key=None)
    with pytest.raises(MachineError, match="needs a key pair"):
        Sandboxes(tmp_path).prepare(view, tmp_path, 2222)


@pytest.fixture(scope="module")
def template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A disk with programs of this host, their libraries, and a user."""
    tree = tmp_path_factory.mktemp("tree")
    tree.chmod(0o755)
    for folder in (
        "usr/bin",
        "usr/sbin",
        "usr/lib",
        "usr/lib64",
        "proc",
        "sys",
        "dev",
        "run",
        "tmp",
        "home/tester",
        "root",
    ):
        (tree / folder).mkdir(parents=True, exist_ok=True)
    for name in ("bin", "sbin", "lib", "lib64"):
        (tree / name).symlink_to(f"usr/{name}")
    (tree / "home/tester").chmod(0o777)
    for name, content in _ACCOUNTS.items():
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text(content)
    for program in _PROGRAMS:
        found = shutil.which(program)
        if program.endswith("grub-probe"):  # a host without GRUB has none
            (tree / program.lstrip("/")).write_text("#!/bin/sh\necho the real one\n")
            (tree / program.lstrip("/")).chmod(0o755)
            continue
        assert found, program
        copy_with_libraries(Path(found), tree, "usr/sbin" if "sbin" in program else "usr/bin")
    disk = tree.parent / "template.raw"
    make_disk(disk, tree)
    return disk


def copy_with_libraries(program: Path, tree: Path, folder: str) -> None:
    shutil.copy(program, tree / folder / program.name)
    linked = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    for path in re.findall(r"(?:=> )?(/\S+) \(0x", linked):
        target = tree / Path(path).relative_to("/")
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)


@pytest.fixture
def spec(template: Path, tmp_path: Path) -> BuilderSpec:
    shutil.copy(template, tmp_path / "disk.raw")
    key = tmp_path / "id"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", key], check=True)
    public_key = key.with_suffix(".pub").read_text().strip()
    return BuilderSpec("i-1", tmp_path, "127.0.0.1", free_port(), public_key, tmp_path / "home")


def free_port() -> int:
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        return int(server.getsockname()[1])


@pytest.fixture
def machine(spec: BuilderSpec) -> Iterator[SandboxMachine]:
    one = SandboxMachine(spec, lambda: None)
    until(lambda: one.ready or one.poll())
    assert one.ready, one.poll()
    yield one
    if one.poll() is None:
        one.kill()


def ssh(spec: BuilderSpec, command: str) -> str:
    options = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "IdentitiesOnly=yes")
    words = [word for option in options for word in ("-o", option)]
    login = ["ssh", *words, "-i", str(spec.folder / "id"), "-p", str(spec.ssh_port), f"tester@{spec.address}", command]
    done = subprocess.run(login, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stdout + done.stderr + (spec.folder / "console.log").read_text()
    return done.stdout


def on_disk(disk: Path, path: str) -> bool:
    shown = subprocess.run(
        ["debugfs", "-R", f"stat {path}", f"{disk}?offset={base_image.PARTITION_OFFSET}"],
        capture_output=True,
        text=True,
    )
    return "Inode:" in shown.stdout


@mounts
def test_what_a_login_writes_is_on_the_disk(machine: SandboxMachine) -> None:
    disk = machine.spec.folder / "disk.raw"
    assert ssh(machine.spec, "cat /proc/cmdline") == "root=UUID=1 ro console=ttyS0\n"
    said = ssh(
        machine.spec, "id -un; uname -r; /usr/sbin/grub-probe --target=partmap /; cat /proc/sys/net/core/default_qdisc"
    )
    assert said.split()[:3] == ["tester", "6.1.0-9-test", "msdos"] and len(said.split()) == 4
    ssh(machine.spec, "touch written; sleep 300 >/dev/null 2>&1 &")
    machine.power_down()
    until(machine.poll)
    assert machine.poll() == Exit("shutdown")
    assert str(machine.spec.folder) not in Path("/proc/self/mounts").read_text()
    assert on_disk(disk, "/home/tester/written") and on_disk(disk, "/var/lib/of-the-boot")
    assert not on_disk(disk, "/etc/ld.so.preload") and not on_disk(disk, "/run/nologin")
    assert file_system(disk, "Filesystem state") == "clean"
    assert b"the real one" in (machine.spec.folder / "disk.raw").read_bytes()


@mounts
def test_what_was_removed_takes_no_place_in_the_image(machine: SandboxMachine) -> None:
    disk = machine.spec.folder / "disk.raw"
    ssh(machine.spec, "head -c 30000000 /dev/urandom > large; sync")
    before = disk.stat().st_blocks * 512
    ssh(machine.spec, "rm large")
    machine.power_down()
    until(machine.poll)
    assert machine.poll() == Exit("shutdown")
    assert disk.stat().st_blocks * 512 < before - 25_000_000


@mounts
def test_a_paused_one_writes_nothing(machine: SandboxMachine) -> None:
    command = "(while sleep 0.1; do echo x >> ticks; done) >/dev/null 2>&1 &"
    ssh(machine.spec, command)
    ticks = Path(f"/proc/{machine.process.pid}/root{machine.spec.folder}/root/home/tester/ticks")
    until(ticks.exists)
    machine.pause()
    before = ticks.stat().st_size
    time.sleep(0.5)
    assert ticks.stat().st_size == before
    machine.resume()
    until(lambda: ticks.stat().st_size > before)


@mounts
def test_one_that_is_killed_is_gone_with_its_mounts(machine: SandboxMachine) -> None:
    inside = machine.first_line
    machine.kill()
    until(lambda: not Path(f"/proc/{inside}").exists())
    ended = machine.poll()
    assert ended and ended.cause == "died" and (machine.spec.folder / PROCESS).exists()
    assert machine.process.returncode == -signal.SIGKILL


@mounts
def test_a_disk_without_a_file_system_is_named(spec: BuilderSpec) -> None:
    (spec.folder / "disk.raw").write_bytes(bytes(4 * MIB))
    machine = SandboxMachine(spec, lambda: None)
    until(machine.poll)
    until(lambda: machine.failure)
    ended = machine.poll()
    assert not machine.ready
    assert ended and ended.cause == "died" and "the sandbox did not start: mount ended with" in ended.detail


def test_who_is_not_root_has_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert unusable().startswith("it needs root")
