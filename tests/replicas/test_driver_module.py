"""The replica driver's kernel module: it builds without a warning where kernel headers are, and says what it is."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from gpu_ami.process import run
from localregion.mirror.table import REPLICAS
from tests.replicas import module_minors

pytestmark = pytest.mark.slow

HEADERS = sorted(Path("/lib/modules").glob("*/build/Makefile"))
SOURCE = REPLICAS / "nvidia_driver/module"


@pytest.mark.skipif(
    not HEADERS or not shutil.which("gcc"), reason="no kernel headers (linux-headers-cloud-amd64) or no gcc here"
)
@pytest.mark.parametrize(("flavour", "licence"), [("open", "Dual MIT/GPL"), ("proprietary", "NVIDIA")])
def test_module_builds_for_the_installed_headers(tmp_path: Path, flavour: str, licence: str) -> None:
    """The kernel's build refuses a module without a GPL licence that uses what the kernel gives to those alone."""
    tree = tmp_path / "nvidia"
    shutil.copytree(SOURCE, tree)
    version = "NV_VERSION := 550.163.01\nNV_BUILD_DATE := Sat Nov 21 00:00:00 UTC 2026\n"
    (tree / "nv-version.mk").write_text(f"{version}NV_FLAVOUR := {flavour}\n")
    done = run(["make", "-C", tree, f"KERNEL_UNAME={HEADERS[-1].parts[3]}", "W=1"], timeout=300)
    assert "warning:" not in done.stdout + done.stderr
    text = (tree / "nvidia.ko").read_bytes()
    for line in (
        b"description=gpu-ami replica of the NVIDIA kernel module",
        b"version=550.163.01",
        f"license={licence}".encode(),
        b"alias=pci:v00001AF4d00001110sv*sd*bc*sc*i*",
        b"driver/nvidia-caps\0",
        b"mig-minors\0",
        b"gpu%d/gi%d/ci%d/access %d\n",
    ):
        assert line in text
    assert b"license=Dual MIT/GPL" in (tree / "nvidia-uvm.ko").read_bytes()


def test_driver_lines_are_printed_as_the_driver_prints_them() -> None:
    """KERN_CONT is what gives the driver's records their level, facility and flag in /dev/kmsg."""
    calls = [line.strip() for file in SOURCE.glob("*.c") for line in file.read_text().splitlines() if "printk(" in line]
    drivers_own = [call for call in calls if "NVRM: " in call]
    assert len(drivers_own) >= 5 and all(call.startswith('printk(KERN_CONT "NVRM: ') for call in drivers_own)
    assert any('"NVRM: Xid (PCI:%s): %u, %s\\n"' in call for call in drivers_own)


# Rows of NVIDIA's MIG user guide, "Device Nodes and Capabilities" (2026-11-29); others by the driver's order.
@pytest.mark.skipif(not shutil.which("gcc"), reason="no gcc here")
@pytest.mark.parametrize(
    ("name", "count", "rows"),
    [
        ("nvlink-minors", 1, ["fabric-mgmt 0"]),
        (
            "mig-minors",
            2 + 32 * 15 * 9,
            [
                "config 1", "monitor 2", "gpu0/gi0/access 3", "gpu0/gi0/ci0/access 4", "gpu0/gi0/ci1/access 5",
                "gpu3/gi3/ci3/access 439", "gpu3/gi3/ci4/access 440", "gpu6/gi11/ci7/access 920",
                "gpu31/gi14/ci7/access 4322",
            ],
        ),
        ("sys-minors", 1, ["fabric-imex-mgmt 4323"]),
    ],
)  # fmt: skip
def test_minors_are_listed_as_the_driver_lists_them(tmp_path: Path, name: str, count: int, rows: list[str]) -> None:
    text = module_minors.listed(tmp_path, name)
    lines = text.splitlines()
    assert text.endswith("\n") and len(lines) == len(set(lines)) == count
    assert [line for line in lines if line in rows] == rows
    numbers = [int(line.rpartition(" ")[2]) for line in lines]
    assert numbers == list(range(numbers[0], numbers[0] + count))
