"""Each driver check, once green and once red with its message."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.validator.checks.conftest import PLAN, Judge
from validator.checks import nvidia_driver as driver
from validator.plan import as_plan
from validator.plan_document import PlanDocument
from validator.probes.hardware import Board, Golden, Hardware

PROC = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.163.01  Release Build  (dvs@u)\nGCC version:\n"
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


HARDWARE = {
    "nvidia-smi --query*": BOTH,
    "nvidia-smi -L": LISTED,
    "ls -1 /proc/driver*": "0000:00:1b.0\n0000:00:1c.0\n",
    "for d in*": bus("1b", "1c"),
    "cat /proc/driver/nvidia/version": PROC,
}

SMI = "NVIDIA-SMI version  : 550.163.01\nNVML version        : 550.163\nDRIVER version      : 550.163.01\n"
DAEMON = "\nnvidia-persistenced:  version 550.163.01  (dvs@u)\n\n  The NVIDIA Persistence Daemon.\n"
CACHE = (
    "\tlibcuda.so.1 (libc6,x86-64) => /lib/libcuda.so.1\n\tlibnvidia-ml.so.1 (libc6,x86-64) => /lib/libnvidia-ml.so.1\n"
)
PARTS = {
    "nvidia-smi --version": SMI,
    "command -v*": "/usr/bin/nvidia-persistenced\n",
    "nvidia-persistenced*": DAEMON,
    "ldconfig*": CACHE,
    "readlink*libcuda*": "/usr/lib/libcuda.so.550.163.01\n",
    "readlink*": "/usr/lib/libnvidia-ml.so.550.163.01\n",
}
NOUVEAU = {
    "cat /proc/modules": "nvidia 1 0 - Live 0x0\n",
    "modprobe*": "blacklist nouveau\noptions nouveau modeset=0\n",
}
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.178.04  Release Build  (dvs@u)\n"

NODES = "666 /dev/nvidia0\n666 /dev/nvidia1\n666 /dev/nvidiactl\n"
MODES = "0, Default\n1, Default\n"
DAEMON_RUNS: dict[str, Any] = {"*cat*": "[Unit]", "*is-active*": "active", "*is-enabled*": "enabled"}
OWNED: dict[str, Any] = {
    "dpkg-query -W*": "nvidia-open-dkms installed 550.163.01-1\nnvidia-driver-cuda installed 550.163.01-1\n",
    "for p in nvidia-smi nvidia-persistenced*": "nvidia-smi:amd64: /usr/bin/nvidia-smi\n",
}
VERIFIED = """\
??5?????? c /etc/nvidia/x.conf
??5??????   /usr/bin/nvidia-smi
.M.......   /usr/bin/nvidia-debugdump
missing     /usr/share/doc/nvidia-smi/copyright
missing     /usr/lib/libcuda.so.1
"""

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (driver.test_loaded_driver_is_the_planned_one, {"cat*": PROC}, "PASS", ""),
    (
        driver.test_loaded_driver_is_the_planned_one,
        {"cat*": PROC.replace("550.163.01", "535.261.03")},
        "FAIL",
        "loaded driver (/proc/driver/nvidia/version): expected '550.163.01', got '535.261.03'",
    ),
    (
        driver.test_loaded_driver_is_the_planned_one,
        {"cat*": (1, "", "No such file or directory")},
        "FAIL",
        "no NVIDIA driver is loaded",
    ),
    (driver.test_no_part_is_of_another_version, PARTS, "PASS", ""),
    (
        driver.test_no_part_is_of_another_version,
        PARTS | {"nvidia-persistenced*": DAEMON.replace("163.01", "144.03")},
        "FAIL",
        "expected the driver's version 550.163.01, got nvidia-persistenced: 550.144.03",
    ),
    (
        driver.test_no_part_is_of_another_version,
        PARTS | {"readlink*libcuda*": "/usr/local/cuda-13.0/compat/libcuda.so.580.65.06\n"},
        "FAIL",
        "/usr/local/cuda-13.0/compat/libcuda.so.580.65.06: 580.65.06",
    ),
    (
        driver.test_no_part_is_of_another_version,
        PARTS | {"nvidia-smi --version": "", "command -v*": (1, ""), "ldconfig*": ""},
        "FAIL",
        "nvidia-smi: no version",
    ),
    (driver.test_persistence_daemon_runs, DAEMON_RUNS | {"nvidia-smi*": "0, Enabled\n1, [N/A]\n"}, "PASS", ""),
    (driver.test_persistence_daemon_runs, DAEMON_RUNS | {"nvidia-smi*": (9, "No devices were found\n")}, "PASS", ""),
    (
        driver.test_persistence_daemon_runs,
        DAEMON_RUNS | {"nvidia-smi*": "0, Enabled\n1, Disabled\n"},
        "FAIL",
        "nvidia-persistenced.service runs, but persistence mode is off: GPU 1: Disabled",
    ),
    (driver.test_power_is_not_limited, {"*": "0, 300.00, 300.00\n1, 300.00, 300.00\n"}, "PASS", ""),
    (
        driver.test_power_is_not_limited,
        {"*": "0, 300.00, 300.00\n1, 150.00, 300.00\n"},
        "FAIL",
        "power limit below the default: GPU 1: 150 of 300 W",
    ),
    (driver.test_power_is_not_limited, {"*": "0, [N/A], [N/A]\n"}, "UNPROVEN", "nvidia-smi shows no power limit"),
    (driver.test_power_is_not_limited, {"*": "0, [GPU is lost], 300.00\n"}, "FAIL", "cannot be read: GPU 0"),
    (driver.test_files_are_the_packages_own, OWNED | {"dpkg --verify*": ""}, "PASS", ""),
    (
        driver.test_files_are_the_packages_own,
        OWNED | {"dpkg --verify*": (1, VERIFIED)},
        "FAIL",
        "files that differ from the packages of nvidia_driver: /usr/bin/nvidia-smi; /usr/lib/libcuda.so.1 (missing)",
    ),
    (
        driver.test_files_are_the_packages_own,
        OWNED | {"dpkg --verify*": (2, "", "dpkg: error: the database is locked\n")},
        "UNPROVEN",
        "dpkg cannot verify the files: dpkg: error: the database is locked",
    ),
    (
        driver.test_files_are_the_packages_own,
        {"dpkg-query -W*": (1, ""), "for p in*": ""},
        "UNPROVEN",
        "nvidia_driver was not installed from a package",
    ),
    (
        driver.test_persistence_daemon_runs,
        {"*cat*": "[Unit]", "*is-active*": (3, "failed\n"), "*": "enabled\n"},
        "FAIL",
        "nvidia-persistenced.service: expected active, enabled, got failed, enabled",
    ),
    (
        driver.test_persistence_daemon_runs,
        {"*": (1, "")},
        "UNPROVEN",
        "the driver's packages have no persistence daemon",
    ),
    (driver.test_nouveau_is_blacklisted, NOUVEAU, "PASS", ""),
    (driver.test_nouveau_is_blacklisted, NOUVEAU | {"modprobe*": ""}, "FAIL", "nouveau is not blacklisted"),
    (
        driver.test_nouveau_is_blacklisted,
        NOUVEAU | {"cat /proc/modules": "nouveau 1 0 - Live 0x0\n"},
        "FAIL",
        "nouveau is loaded",
    ),
    (driver.test_module_on_disk_is_the_planned_one, {"for k*": "6.1.0-44 550.163.01\n"}, "PASS", ""),
    (
        driver.test_module_on_disk_is_the_planned_one,
        {"for k*": "6.1.0-44 550.163.01\n6.1.0-50 missing\n"},
        "FAIL",
        "module nvidia on disk: expected 550.163.01, got 6.1.0-50: missing",
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
    (
        driver.test_packages_are_the_planned_ones,
        {"dpkg-query*": "nvidia-driver-cuda installed 550.163.01-1\nnvidia-open-dkms installed 550.163.01-1\n"},
        "PASS",
        "",
    ),
    (
        driver.test_packages_are_the_planned_ones,
        {"dpkg-query*": "nvidia-open-dkms installed 550.163.01-1\n"},
        "FAIL",
        "'nvidia-driver-cuda': 'missing'",
    ),
    (driver.test_packages_are_held, {"apt-mark*": "nvidia-driver-cuda\nnvidia-open-dkms\n"}, "PASS", ""),
    (
        driver.test_packages_are_held,
        {"apt-mark*": "nvidia-driver-cuda\n"},
        "FAIL",
        "not held, so an upgrade would change them: nvidia-open-dkms",
    ),
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
        "PASS",
        "",
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
def test_nvidia_driver(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    outcome = judge(check, table)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


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


def planned(**more: Any) -> PlanDocument:
    return as_plan({"nvidia_driver": {"version": "580.178.04"} | more})


BY_TYPE = {"g5.12xlarge": "proprietary"}
FLAVOURS: list[tuple[PlanDocument, str | tuple[int, str], str, str]] = [
    (planned(flavour="open"), PROC, "PASS", ""),
    (planned(flavour="proprietary"), PROPRIETARY, "PASS", ""),
    (
        planned(flavour="open"),
        PROPRIETARY,
        "FAIL",
        "module on g5.12xlarge: expected 'open', got 'proprietary'",
    ),
    (planned(flavour="boot", flavour_by_instance_type=BY_TYPE), PROPRIETARY, "PASS", ""),
    (planned(flavour="boot", flavour_by_instance_type=BY_TYPE), PROC, "FAIL", "expected 'proprietary', got 'open'"),
    (
        planned(flavour="boot", flavour_by_instance_type={}),
        PROC,
        "UNPROVEN",
        "the plan has no driver flavour for g5.12xlarge",
    ),
    (planned(provided_by="dlami"), PROC, "UNPROVEN", "the plan has no driver flavour for g5.12xlarge"),
    (planned(flavour="open"), (1, ""), "UNPROVEN", "no NVIDIA driver is loaded"),
]


@pytest.mark.parametrize(("plan", "shown", "verdict", "message"), FLAVOURS)
def test_flavour(judge: Judge, plan: PlanDocument, shown: Any, verdict: str, message: str) -> None:
    outcome = judge(driver.test_loaded_flavour_is_the_one_for_this_gpu, {"cat*": shown}, plan=plan)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


USED, OFF = "EnableGpuFirmware: 18\n", "ModifyDeviceFiles: 1\nEnableGpuFirmware: 0\n"
FIRMWARE: list[tuple[PlanDocument, str, str, str]] = [
    (planned(flavour="open"), USED, "PASS", ""),
    (planned(flavour="open"), OFF, "FAIL", "EnableGpuFirmware: expected GSP in use, got 0"),
    (planned(flavour="proprietary", gsp=False), OFF, "PASS", ""),
    (
        planned(flavour="proprietary", gsp=False),
        USED,
        "FAIL",
        "EnableGpuFirmware: expected 0 (plan: gsp: false), got 18",
    ),
    (planned(flavour="boot", gsp=False, flavour_by_instance_type={"g5.12xlarge": "open"}), USED, "PASS", ""),
    (
        planned(flavour="open"),
        "ModifyDeviceFiles: 1\n",
        "UNPROVEN",
        "/proc/driver/nvidia/params has no EnableGpuFirmware",
    ),
]


@pytest.mark.parametrize(("plan", "shown", "verdict", "message"), FIRMWARE)
def test_firmware(judge: Judge, plan: PlanDocument, shown: str, verdict: str, message: str) -> None:
    outcome = judge(driver.test_firmware_of_gpus_is_used_as_planned, {"cat*": shown}, plan=plan)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


@pytest.mark.parametrize("check", [driver.test_packages_are_the_planned_ones, driver.test_packages_are_held])
def test_packages_of_the_base_ami_are_unproven(judge: Judge, check: Any) -> None:
    """ParallelCluster's AMI brings its driver along: the plan names its version, and no packages."""
    provided = {"version": "595.112.07", "provided_by": "parallelcluster 3.16.3"}
    outcome = judge(check, {}, plan=as_plan({**PLAN, "nvidia_driver": provided}))
    assert (outcome.verdict, "base AMI's (parallelcluster 3.16.3)" in outcome.message) == ("UNPROVEN", True)


def test_owners_of_programs_are_verified_too(judge: Judge) -> None:
    asked: list[str] = []

    def verify(command: str) -> str:
        asked.append(command)
        return ""

    assert judge(driver.test_files_are_the_packages_own, OWNED | {"dpkg --verify*": verify}).verdict == "PASS"
    assert asked == ["dpkg --verify nvidia-driver-cuda nvidia-open-dkms nvidia-smi"]


def test_rpm_verifies_only_contents(judge: Judge) -> None:
    plan = as_plan({**PLAN, "os": {"id": "amzn", "family": "redhat", "ssh_user": "ec2-user"}})
    table = {
        "rpm -q --qf*": "nvidia-open-dkms 3:550.163.01-1\nnvidia-driver-cuda 3:550.163.01-1\n",
        "for p in*rpm -qf*": "nvidia-driver-cuda: \n",
        "rpm --verify*": (2, "S.5....T.    /usr/bin/nvidia-smi\nS.5....T.  c /etc/x.conf\n.......T.    /usr/bin/y\n"),
    }
    outcome = judge(driver.test_files_are_the_packages_own, table, plan=plan)
    assert outcome.message == "files that differ from the packages of nvidia_driver: /usr/bin/nvidia-smi"


def test_daemon_of_a_distribution_may_have_a_version_of_its_own(judge: Judge) -> None:
    """Debian's archive has it so; the plan names that version, and any other is wrong."""
    planned = as_plan({**PLAN, "nvidia_driver": {**PLAN["nvidia_driver"], "persistence_daemon": "550.144.03"}})
    own = PARTS | {"nvidia-persistenced*": DAEMON.replace("163.01", "144.03")}
    assert judge(driver.test_no_part_is_of_another_version, own, plan=planned).verdict == "PASS"
    outcome = judge(driver.test_no_part_is_of_another_version, PARTS, plan=planned)
    assert (outcome.verdict, "got nvidia-persistenced: 550.163.01" in outcome.message) == ("FAIL", True)


TRANSCRIPT = Path(__file__).parents[2] / "transcripts" / "nvidia_smi_without_driver.yml"
REAL = {
    row["command"]: (row["status"], row["stdout"]) for row in yaml.safe_load(TRANSCRIPT.read_text(encoding="utf-8"))
}


@pytest.mark.parametrize(
    ("check", "table", "message"),
    [
        (
            driver.test_no_part_is_of_another_version,
            {**PARTS, "nvidia-smi --version": REAL["nvidia-smi --version"]},
            "expected the driver's version 550.163.01, got nvidia-smi: no version",
        ),
        (
            driver.test_no_part_is_of_another_version,
            {**PARTS, "nvidia-persistenced*": REAL["nvidia-persistenced --version"]},
            "got nvidia-persistenced: 535.171.04",
        ),
        (
            driver.test_every_promised_gpu_is_there,
            {command: said for command, said in REAL.items() if command != "nvidia-smi"},
            "nvidia-smi exited with status 9: NVIDIA-SMI has failed because it couldn't communicate with",
        ),
        (
            driver.test_gpus_are_the_promised_model,
            {command: said for command, said in REAL.items() if command != "nvidia-smi"},
            "nvidia-smi exited with status 9: NVIDIA-SMI has failed because it couldn't communicate with",
        ),
    ],
)
def test_real_programs_without_the_kernel_module(judge: Judge, check: Any, table: dict[str, Any], message: str) -> None:
    outcome = judge(check, table)
    assert (outcome.verdict, message in outcome.message) == ("FAIL", True), outcome
