"""Each check of the driver's GPUs, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import PLAN, PROC, Judge, transcript
from validator.checks import nvidia_driver as driver
from validator.plan import as_plan
from validator.plan_document import PlanDocument
from validator.probes.hardware import Board, Golden, Hardware

ROW = "{index}, 00000000:00:{bus}.0, NVIDIA A10G, {memory}\n"
BOTH = ROW.format(index=0, bus="1B", memory=23028) + ROW.format(index=1, bus="1C", memory=23028)
LISTED = "".join(f"GPU {n}: NVIDIA A10G (UUID: GPU-0f0e0d0c-0000-0000-0000-00000000000{n})\n" for n in (0, 1))


def bus(*slots: str, gpu: str = "0x10de 0x2237 0x030200 nvidia") -> str:
    """What PCI_LIST prints: a network card, a bridge of NVIDIA's that is no GPU, and GPUs at 0000:00:<slot>.0."""
    others = "0000:00:05.0 0x1d0f 0xec20 0x020000 ena\n0000:00:06.0 0x10de 0x1af1 0x068000 nvidia-nvswitch\n"
    return others + "".join(f"0000:00:{slot}.0 {gpu}\n" for slot in slots)


def recorded(memory: int = 23028, simulated: bool = False, driver: str = "550.54.15") -> Golden:
    boards = tuple(Board(f"0000:00:{slot}.0", "NVIDIA A10G", memory) for slot in ("1b", "1c"))
    return Golden("g5.12xlarge", Hardware(boards, {}, simulated=simulated, driver=driver), {"when": "2026-11-21"})


def each_gpu(*limits: tuple[str, str]) -> str:
    """What _QUERY prints for GPUs with these limits of their power, and their defaults."""
    return "".join(
        f"{index}, 0000:00:1b.0, NVIDIA A10G, 23028, Enabled, {limit}, {default}, Default\n"
        for index, (limit, default) in enumerate(limits)
    )


HARDWARE = {
    "nvidia-smi --query*": BOTH,
    "nvidia-smi -L": LISTED,
    "ls -1 /proc/driver*": "0000:00:1b.0\n0000:00:1c.0\n",
    "for d in*": bus("1b", "1c"),
    "cat /proc/driver/nvidia/version": PROC,
}

NODES = "666 /dev/nvidia0\n666 /dev/nvidia1\n666 /dev/nvidiactl\n"
MODES = each_gpu(("300.00", "300.00"), ("300.00", "300.00"))

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (driver.test_power_is_not_limited, {"*": each_gpu(("300.00", "300.00"), ("300.00", "300.00"))}, "PASS", ""),
    (
        driver.test_power_is_not_limited,
        {"*": each_gpu(("300.00", "300.00"), ("150.00", "300.00"))},
        "FAIL",
        "power limit below the default: GPU 1: 150 of 300 W",
    ),
    (
        driver.test_power_is_not_limited,
        {"*": each_gpu(("[N/A]", "[N/A]"))},
        "UNPROVEN",
        "nvidia-smi shows no power limit",
    ),
    (driver.test_power_is_not_limited, {"*": (15, "Unable to determine\n")}, "UNPROVEN", "nvidia-smi does not answer"),
    (driver.test_power_is_not_limited, {"*": each_gpu(("[GPU is lost]", "300.00"))}, "FAIL", "cannot be read: GPU 0"),
    (driver.test_every_promised_gpu_is_there, HARDWARE, "PASS", ""),
    (
        driver.test_every_promised_gpu_is_there,
        HARDWARE | {"for d in*": bus("1b", "1c", "1d")},
        "FAIL",
        "GPUs of g5.12xlarge: expected 2, got 3 in PCI (0000:00:1b.0, 0000:00:1c.0, 0000:00:1d.0)",
    ),
    (
        driver.test_every_promised_gpu_is_there,
        HARDWARE | {"ls -1 /proc/driver*": "0000:00:1b.0\n"},
        "FAIL",
        "GPUs of g5.12xlarge: expected 2, got 1 in /proc/driver/nvidia/gpus (0000:00:1b.0)",
    ),
    (
        driver.test_every_promised_gpu_is_there,
        HARDWARE | {"for d in*": bus("1b", "1e")},
        "FAIL",
        "sources show different GPUs:",
    ),
    (
        driver.test_every_promised_gpu_is_there,
        HARDWARE | {"for d in*": bus("1b", "1c", "1d", gpu="0x10de 0x2237 0x030200")},
        "FAIL",
        "GPUs of g5.12xlarge: expected 2, got 3 in PCI (0000:00:1b.0, 0000:00:1c.0, 0000:00:1d.0)",
    ),
    (
        driver.test_every_promised_gpu_is_there,
        HARDWARE | {"nvidia-smi -L": LISTED.splitlines()[0]},
        "FAIL",
        "nvidia-smi -L: expected 2 GPUs, got 1: 'GPU 0: NVIDIA A10G",
    ),
    (
        driver.test_every_promised_gpu_is_there,
        {"nvidia-smi*": (9, "No devices were found\n")},
        "FAIL",
        "nvidia-smi exited with status 9: No devices were found",
    ),
    (driver.test_gpus_are_the_promised_model, HARDWARE, "PASS", ""),
    (
        driver.test_gpus_are_the_promised_model,
        HARDWARE | {"nvidia-smi --query*": BOTH.replace("23028", "22500", 1)},
        "FAIL",
        "GPU 0000:00:1b.0: expected 23028 MiB within 2 %, got 22500 MiB",
    ),
    (
        driver.test_gpus_are_the_promised_model,
        HARDWARE | {"nvidia-smi --query*": BOTH.replace("23028", "22731")},
        "PASS",
        "",
    ),
    (
        driver.test_gpus_are_the_promised_model,
        HARDWARE | {"nvidia-smi --query*": BOTH.replace("A10G", "A10", 1)},
        "FAIL",
        "GPU 0000:00:1b.0: expected NVIDIA A10G, got NVIDIA A10",
    ),
    (
        driver.test_gpus_are_the_promised_model,
        HARDWARE | {"nvidia-smi --query*": BOTH.replace("23028", "[N/A]", 1)},
        "FAIL",
        "GPU 00000000:00:1B.0: memory.total: expected MiB, got '[N/A]'",
    ),
    (
        driver.test_gpus_are_the_promised_model,
        HARDWARE | {"nvidia-smi --query*": ""},
        "FAIL",
        "expected NVIDIA A10G, 23028 MiB, got no GPU",
    ),
    (driver.test_every_user_can_use_the_gpus, {"stat*": NODES, "nvidia-smi*": MODES}, "PASS", ""),
    (
        driver.test_every_user_can_use_the_gpus,
        {"stat*": NODES.replace("666", "660", 1), "nvidia-smi*": MODES},
        "FAIL",
        "GPUs that not every process can use: /dev/nvidia0 has mode 660",
    ),
    (
        driver.test_every_user_can_use_the_gpus,
        {"stat*": NODES, "nvidia-smi*": MODES.replace("Default", "Prohibited", 1)},
        "FAIL",
        "GPU 0 is in compute mode Prohibited",
    ),
    (
        driver.test_every_user_can_use_the_gpus,
        {"stat*": NODES, "nvidia-smi*": (18, "Failed to initialize NVML: Driver/library version mismatch\n")},
        "UNPROVEN",
        "nvidia-smi does not answer: see nvidia_driver::test_every_promised_gpu_is_there",
    ),
    (
        driver.test_every_user_can_use_the_gpus,
        {"*": (1, "", "No such file")},
        "UNPROVEN",
        "no GPU has a device node: see nvidia_driver::test_every_promised_gpu_is_there",
    ),
    (driver.test_nothing_hides_gpus, {"*": "HOME=/root\n"}, "PASS", ""),
    (
        driver.test_nothing_hides_gpus,
        {"env*": "CUDA_VISIBLE_DEVICES=0\n", "*": ""},
        "FAIL",
        "settings that hide GPUs: CUDA_VISIBLE_DEVICES=0 (login shells)",
    ),
    (
        driver.test_nothing_hides_gpus,
        {"systemctl show -p Def*": "CUDA_VISIBLE_DEVICES=\n", "*": ""},
        "FAIL",
        "CUDA_VISIBLE_DEVICES= (services' defaults)",
    ),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_gpus(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    outcome = judge(check, table)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


@pytest.mark.parametrize(
    ("golden", "verdict", "message"),
    [
        (recorded(), "PASS", ""),
        (recorded(22731), "FAIL", "GPU 0000:00:1b.0: expected 22731 MiB (g5.12xlarge.json of 2026-11-21"),
        (recorded(22731, simulated=True), "PASS", ""),
        (recorded(22731, driver="470.256.02"), "PASS", ""),
    ],
)
def test_memory_is_exactly_the_recorded_one(judge: Judge, golden: Golden, verdict: str, message: str) -> None:
    outcome = judge(driver.test_gpus_are_the_promised_model, HARDWARE, golden_file=golden)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome
    applies = golden.hardware.driver.startswith("550") and not golden.hardware.simulated
    assert (golden.name in outcome.check.planned[2]) == applies


def with_addresses(*addresses: str) -> PlanDocument:
    (row,) = PLAN["instance_types"]
    return as_plan(PLAN | {"instance_types": [row | {"gpu": row["gpu"] | {"pci": list(addresses)}}]})


def test_the_missing_address_is_named(judge: Judge) -> None:
    plan = with_addresses("0000:00:1b.0", "0000:00:1d.0")
    outcome = judge(driver.test_every_promised_gpu_is_there, HARDWARE, plan=plan)
    assert outcome.verdict == "FAIL"
    assert "no GPU at 0000:00:1d.0 (facts); unexpected GPU at 0000:00:1c.0" in outcome.message
    lost = HARDWARE | {"ls -1 /proc/driver*": "0000:00:1b.0\n"}
    outcome = judge(driver.test_every_promised_gpu_is_there, lost, plan=with_addresses("0000:00:1b.0", "0000:00:1c.0"))
    assert outcome.message.endswith(": no GPU at 0000:00:1c.0 (facts)")


def test_addresses_come_from_the_golden_file_without_facts(judge: Judge) -> None:
    moved = HARDWARE | {
        "nvidia-smi --query*": BOTH.replace("1C.0", "1D.0"),
        "ls -1 /proc/driver*": "0000:00:1b.0\n0000:00:1d.0\n",
        "for d in*": bus("1b", "1d"),
    }
    assert judge(driver.test_every_promised_gpu_is_there, moved).verdict == "PASS"
    outcome = judge(driver.test_every_promised_gpu_is_there, moved, golden_file=recorded())
    assert outcome.verdict == "FAIL"
    assert "no GPU at 0000:00:1c.0 (g5.12xlarge.json of 2026-11-21 (real hardware))" in outcome.message
    assert judge(driver.test_every_promised_gpu_is_there, moved, golden_file=recorded(simulated=True)).verdict == "PASS"


REAL = transcript("nvidia_smi_without_driver")


@pytest.mark.parametrize(
    ("check", "verdict", "message"),
    [
        (
            driver.test_every_promised_gpu_is_there,
            "FAIL",
            "nvidia-smi exited with status 9: NVIDIA-SMI has failed because it couldn't communicate with",
        ),
        (
            driver.test_gpus_are_the_promised_model,
            "UNPROVEN",
            "no NVIDIA driver is loaded: see nvidia_driver::test_every_promised_gpu_is_there",
        ),
    ],
)
def test_real_programs_without_the_kernel_module(judge: Judge, check: Any, verdict: str, message: str) -> None:
    outcome = judge(check, {command: said for command, said in REAL.items() if command != "nvidia-smi"})
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome
