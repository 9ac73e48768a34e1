"""The shell command that says whether a host's GPUs are real, on hosts with real and simulated ones."""

from __future__ import annotations

import subprocess

import pytest

from tests.validator.probes.test_hardware import PCI
from validator import pci
from validator.probes import hardware


@pytest.mark.parametrize(
    ("listed", "kind"),
    [
        (PCI, "real"),
        ("0000:00:1e.0 0x10de 0x1eb8 0x030200\n", "real"),
        ("0000:00:1f.0 0x1af4 0x1110 0x050000 nvidia\n", "simulated"),
        (PCI + "0000:00:1f.0 0x1af4 0x1110 0x050000 nvidia\n", "simulated"),
        ("0000:00:05.0 0x1d0f 0xec20 0x020000 ena\n", ""),
    ],
)
def test_shell_command_agrees_with_is_simulated(listed: str, kind: str) -> None:
    command = pci.KIND.replace(pci.PCI_LIST, f"printf '%s' '{listed}'")
    assert command != pci.KIND
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == kind
    assert (kind != "real") == hardware.is_simulated(hardware.pci_devices(listed))
