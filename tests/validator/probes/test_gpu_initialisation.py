"""Which kernel messages say that a GPU could not be initialised, and which only name the driver."""

from __future__ import annotations

import pytest

from validator.probes.gpu_initialisation import failures


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: GPU 0000:4b:00.0: RmInitAdapter failed! (0x22:0x56:894)",
        "NVRM: GPU 0000:4b:00.0: rm_init_adapter failed, device minor number 5",
        "NVRM: rm_init_adapter(0) failed",
        "NVRM: GPU 0000:4b:00.0 is already lost",
        "NVRM: GPU6 RmInitAdapter: Cannot initialize GSP firmware RM",
        "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
        "nvidia: probe of 0000:4b:00.0 failed with error -1",
        "nvidia 0000:4b:00.0: probe with driver nvidia failed with error -1",
    ],
)
def test_failure(line: str) -> None:
    assert failures(f"something else\n{line}\n{line}\n") == [line]


@pytest.mark.parametrize(
    "line",
    [
        "NVRM: loading NVIDIA UNIX x86_64 Kernel Module  550.163.01",
        "NVRM: Xid (PCI:0000:4b:00): 79, GPU has fallen off the bus.",
        "nouveau 0000:4b:00.0: probe with driver nouveau failed with error -12",
        "saw NVRM: GPU 0000:4b:00.0: RmInitAdapter failed! (0x22:0x56:894)",
    ],
)
def test_no_failure(line: str) -> None:
    assert failures(line) == []
