"""A machine's /proc and /sys as the replica driver shows them, in a folder."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

VERSION = "550.163.01"
A10G = {"name": "NVIDIA A10G", "architecture": "Ampere", "memory_mib": "23028", "power_limit_w": "300", "max": "1710"}
A100 = {
    "name": "NVIDIA A100-SXM4-40GB",
    "architecture": "Ampere",
    "memory_mib": "40960",
    "power_limit_w": "400",
    "max": "1410",
}


def board(model: dict[str, str], index: int, address: str) -> str:
    values = {
        "magic": "gpu-ami-board/1",
        "index": index,
        "minor": index,
        "pci": address,
        "name": model["name"],
        "architecture": model["architecture"],
        "compute_capability": "8.6",
        "uuid": f"GPU-{index:08x}-0000-0000-0000-000000000000",
        "serial": f"13200000{index}",
        "vbios": "94.02.75.00.01",
        "memory_mib": model["memory_mib"],
        "power_limit_w": model["power_limit_w"],
        "clock_graphics_mhz": model["max"],
        "clock_sm_mhz": model["max"],
        "clock_memory_mhz": 6251,
        "clock_video_mhz": 1500,
        "pcie_gen": 4,
        "pcie_width": 16,
    }
    return "".join(f"{key}: {value}\n" for key, value in values.items())


def show_boards(proc: Path, loaded: str, count: int, model: dict[str, str] = A10G) -> None:
    """proc: /proc/driver/nvidia of a machine with this driver and boards."""
    (proc / "gpus").mkdir(parents=True)
    line = f"NVIDIA UNIX Open Kernel Module for x86_64  {loaded}  Release Build  (x@y)  Sat Nov 21 2026\n"
    (proc / "version").write_text("NVRM version: " + line + "GCC version:  gcc version 12.2.0 (Debian 12.2.0-14)\n")
    for index in range(count):
        address = f"0000:00:{0x1B + index:02x}.0"
        (proc / "gpus" / address).mkdir()
        (proc / "gpus" / address / "board").write_text(board(model, index, address))


@pytest.fixture
def machine(tmp_path: Path) -> Callable[..., str]:
    """machine(model, count, loaded=version) → the root folder; loaded=None: no module."""

    def make(model: dict[str, str] = A10G, count: int = 2, loaded: str | None = VERSION) -> str:
        root = tmp_path / "root"
        if loaded:
            show_boards(root / "proc/driver/nvidia", loaded, count, model)
        return str(root)

    return make
