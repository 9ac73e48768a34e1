"""Whether KVM works: judged by booting, remembered until the host boots again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from gpu_ami.files import write_json
from gpu_ami.local.machines import kvm


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
