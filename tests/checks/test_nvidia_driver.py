"""Each driver check, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from checks.conftest import Judge
from validator.checks import nvidia_driver as driver

PROC = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build  (dvs@u)\nGCC version:\n"
ROW = "{index}, 00000000:00:{bus}.0, NVIDIA A10G, {memory}\n"
BOTH = ROW.format(index=0, bus="1B", memory=23028) + ROW.format(index=1, bus="1C", memory=23028)
LISTED = "".join(f"GPU {n}: NVIDIA A10G (UUID: GPU-0f0e0d0c-0000-0000-0000-00000000000{n})\n" for n in (0, 1))
HARDWARE = {
    "nvidia-smi --query*": BOTH,
    "nvidia-smi -L": LISTED,
    "ls -1 /proc/driver*": "0000:00:1b.0\n0000:00:1c.0\n",
    "for d in*": "0000:00:1b.0\n0000:00:1c.0\n",
}

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (driver.test_loaded_driver_is_the_planned_one, {"cat*": PROC}, "PASS", ""),
    (
        driver.test_loaded_driver_is_the_planned_one,
        {"cat*": PROC.replace("550.163.01", "535.261.03")},
        "FAIL",
        "loaded driver (/proc/driver/nvidia/version): found '535.261.03', expected '550.163.01'",
    ),
    (
        driver.test_loaded_driver_is_the_planned_one,
        {"cat*": (1, "", "No such file or directory")},
        "FAIL",
        "no NVIDIA driver is loaded",
    ),
    (driver.test_module_on_disk_is_the_planned_one, {"for k*": "6.1.0-44 550.163.01\n"}, "PASS", ""),
    (
        driver.test_module_on_disk_is_the_planned_one,
        {"for k*": "6.1.0-44 550.163.01\n6.1.0-50 missing\n"},
        "FAIL",
        "module nvidia on disk: 6.1.0-50: missing, expected 550.163.01",
    ),
    (
        driver.test_dkms_built_for_every_kernel,
        {"dkms*": "nvidia/550.163.01, 6.1.0-44, x86_64: installed\n", "cd*": "6.1.0-44\n"},
        "PASS",
        "",
    ),
    (
        driver.test_dkms_built_for_every_kernel,
        {"dkms*": "nvidia/550.163.01, 6.1.0-44, x86_64: installed\n", "cd*": "6.1.0-44\n6.1.0-50\n"},
        "FAIL",
        "DKMS has no nvidia 550.163.01 installed for kernel 6.1.0-50",
    ),
    (
        driver.test_dkms_built_for_every_kernel,
        {"dkms*": "nvidia/550.163.01, 6.1.0-44, x86_64: built\n", "cd*": "6.1.0-44\n"},
        "FAIL",
        "for kernel 6.1.0-44",
    ),
    (driver.test_packages_are_the_planned_ones, {"dpkg-query*": "550.163.01-1"}, "PASS", ""),
    (
        driver.test_packages_are_the_planned_ones,
        {"dpkg-query*cuda*": "missing\n", "dpkg-query*": "550.163.01-1"},
        "FAIL",
        "'nvidia-driver-cuda': 'missing'",
    ),
    (driver.test_packages_are_held, {"apt-mark*": "nvidia-driver-cuda\nnvidia-open-dkms\n"}, "PASS", ""),
    (
        driver.test_packages_are_held,
        {"apt-mark*": "nvidia-driver-cuda\n"},
        "FAIL",
        "not held at their version: nvidia-open-dkms",
    ),
    (driver.test_every_promised_gpu_is_there, HARDWARE, "PASS", ""),
    (
        driver.test_every_promised_gpu_is_there,
        HARDWARE | {"for d in*": "0000:00:1b.0\n0000:00:1c.0\n0000:00:1d.0\n"},
        "FAIL",
        "g5.12xlarge has 2 GPUs, found 3 by PCI",
    ),
    (
        driver.test_every_promised_gpu_is_there,
        HARDWARE | {"ls -1 /proc/driver*": "0000:00:1b.0\n"},
        "FAIL",
        "found 1 by /proc/driver/nvidia/gpus (0000:00:1b.0)",
    ),
    (
        driver.test_every_promised_gpu_is_there,
        HARDWARE | {"for d in*": "0000:00:1b.0\n0000:00:1e.0\n"},
        "FAIL",
        "not the same GPUs",
    ),
    (
        driver.test_every_promised_gpu_is_there,
        HARDWARE | {"nvidia-smi -L": LISTED.splitlines()[0]},
        "FAIL",
        "nvidia-smi -L lists 1 GPUs, expected 2",
    ),
    (
        driver.test_every_promised_gpu_is_there,
        {"nvidia-smi*": (9, "No devices were found\n")},
        "FAIL",
        "nvidia-smi ended with 9: No devices were found",
    ),
    (driver.test_gpus_are_the_promised_model, HARDWARE, "PASS", ""),
    (
        driver.test_gpus_are_the_promised_model,
        {"nvidia-smi*": BOTH.replace("23028", "22731", 1)},
        "FAIL",
        "GPU 0: NVIDIA A10G, 22731; expected NVIDIA A10G, 23028",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_nvidia_driver(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("line", "version"),
    [
        ("NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.42.01  Tue Jun 15 21:26:37 UTC 2021", "470.42.01"),
        ("NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.45.04  Release Build  (x)", "595.45.04"),
        ("NVRM version: something else", ""),
    ],
)
def test_version_of_both_flavours(line: str, version: str) -> None:
    assert driver.loaded_version(line + "\nGCC version:  gcc version 12.2.0\n") == version
