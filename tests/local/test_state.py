"""What the region keeps on disk, and how it knows its own processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from dataclasses import replace
from pathlib import Path

import pytest

from gpu_ami.local import kvm, leftovers
from gpu_ami.local.network import claim_network
from gpu_ami.local.state import (
    ImageRecord,
    Layout,
    ProcessIdentity,
    clear_partial_images,
    identify,
    load_images,
    read_json,
    save_image,
    write_json,
)

RECORD = ImageRecord(
    id="ami-1", name="n", description="", owner_id="1", architecture="x86_64", root_device_name="/dev/xvda",
    snapshot_id="snap-1", size_gib=8, creation_date="2026-11-21T00:00:00.000Z", tags={"a": "b"},
)  # fmt: skip


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    layout = Layout(tmp_path)
    layout.make()
    return layout


def test_json_is_written_whole_and_private(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    write_json(path, {"a": 1})
    assert (read_json(path), path.stat().st_mode & 0o777) == ({"a": 1}, 0o600)
    with pytest.raises(ValueError, match="Circular"):
        loop: list[object] = []
        loop.append(loop)
        write_json(path, loop)
    assert read_json(path) == {"a": 1}
    assert [entry.name for entry in tmp_path.iterdir()] == ["x.json"]


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_broken_json_is_none(tmp_path: Path, text: str) -> None:
    (tmp_path / "x.json").write_text(text)
    assert read_json(tmp_path / "x.json") is None


def test_a_process_is_itself_and_no_other() -> None:
    me = identify(os.getpid())
    assert me is not None and me.alive()
    assert not replace(me, started="another boot/1").alive()
    child = subprocess.Popen(["sleep", "60"])
    identity = identify(child.pid)
    assert identity is not None
    assert identity.alive()
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # ended, and nobody has asked for its status: a zombie
    assert identify(child.pid) is None
    assert not identity.alive()
    child.wait()
    assert not identity.alive()


@pytest.mark.parametrize("data", [None, {}, {"pid": "1", "started": "x"}, []])
def test_an_identity_needs_both_halves(data: object) -> None:
    assert ProcessIdentity.from_json(data) is None


def test_an_image_comes_back_as_it_was(layout: Layout) -> None:
    folder = layout.image("ami-1")
    folder.mkdir()
    save_image(layout, RECORD)
    assert list(load_images(layout)) == []  # no disk yet
    (folder / "disk.raw").touch()
    assert list(load_images(layout)) == [RECORD]


def test_half_made_images_are_cleared(layout: Layout) -> None:
    for name in ("ami-1", "ami-2"):
        layout.image(name).mkdir()
        (layout.image(name) / "disk.raw").touch()
    save_image(layout, RECORD)
    assert clear_partial_images(layout) == ["ami-2"]
    assert [path.name for path in layout.images.iterdir()] == ["ami-1"]


def test_leftovers_are_found_by_identity_and_ended(layout: Layout) -> None:
    mine, other = subprocess.Popen(["sleep", "60"]), subprocess.Popen(["sleep", "60"])
    try:
        for name, process in (("i-1", mine), ("i-2", other)):
            identity = identify(process.pid)
            assert identity is not None
            started = identity.started if process is mine else "an earlier boot/77"
            layout.instance(name).mkdir()
            write_json(layout.instance(name) / "process.json", {"pid": process.pid, "started": started})
        write_json(layout.region_file, {})
        found = leftovers.clear(layout)
        assert mine.wait(10) == -signal.SIGKILL
        assert other.poll() is None  # the pid was recorded, but it is another process now
        assert found == [f"machine of i-1 (pid {mine.pid})", "disk of i-1", "disk of i-2", str(layout.region_file)]
        assert list(layout.instances.iterdir()) == []
        assert leftovers.clear(layout) == []
    finally:
        mine.kill()
        other.kill()
        other.wait()


def test_two_regions_get_two_networks() -> None:
    one, two = claim_network(), claim_network()
    with one.claim, two.claim:
        assert one.cidr != two.cidr
        assert one.cidr.startswith("127.")


def fake_qemu(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str) -> None:
    program = tmp_path / "bin" / "qemu-system-x86_64"
    program.parent.mkdir()
    program.write_text(f"#!/bin/sh\n{script}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{program.parent}:/usr/bin:/bin")
    monkeypatch.setattr(kvm, "DEVICE", tmp_path)  # a device that can be opened
    monkeypatch.setattr(kvm, "_DEADLINE_SECONDS", 2.0)


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
    assert kvm.usable(tmp_path / "vmlinuz", remembered) is usable
    assert json.loads(remembered.read_text())["usable"] is usable


def test_the_answer_is_remembered_for_this_boot_of_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_qemu(tmp_path, monkeypatch, "exit 1")
    boot = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    remembered = tmp_path / "kvm.json"
    write_json(remembered, {"host_boot": boot, "usable": True})
    assert kvm.usable(tmp_path / "vmlinuz", remembered) is True
    write_json(remembered, {"host_boot": "another", "usable": True})
    assert kvm.usable(tmp_path / "vmlinuz", remembered) is False


def test_no_device_no_kvm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kvm, "DEVICE", tmp_path / "nothing")
    assert kvm.usable(tmp_path / "vmlinuz", tmp_path / "kvm.json") is False
