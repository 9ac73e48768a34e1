"""Masked units and kernel options of a genuine base AMI, and those that are none."""

from __future__ import annotations

from pathlib import Path

import pytest

from validator.probes import system_settings

ROOT = Path(__file__).resolve().parents[3]


def test_masks_of_the_local_region_are_those_of_its_base_images() -> None:
    text = (ROOT / "gpu_ami/local/replicas/debian_ami/masked.txt").read_text(encoding="utf-8")
    units = {line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#")}
    assert all(system_settings.is_harmless_mask(unit, "ec2") for unit in units)
    assert not system_settings.is_harmless_mask("ssh.service", "eks")
    assert system_settings.is_harmless_mask("update-motd.service", "eks")
    assert not system_settings.is_harmless_mask("update-motd.service", "ec2")


@pytest.mark.parametrize(
    ("word", "is_unsafe"),
    [
        ("mitigations=auto", False), ("modprobe.blacklist=nouveau", False), ("console=ttyS0,115200n8", False),
        ("ds=ec2", False), ("cloud-init=disabled", True), ("ds=nocloud;s=/seed", True), ("init=/bin/sh", True),
        ("module_blacklist=nouveau,nvidia_uvm", True), ("mitigations=off", True), ("systemd.mask=sshd.service", True),
    ],
)  # fmt: skip
def test_kernel_options(word: str, is_unsafe: bool) -> None:
    assert system_settings.is_unsafe_option(word) is is_unsafe
