"""Each check of the driver itself, once green and once red with its message."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest

from gpu_ami.faults import catalogue
from tests.validator.checks.conftest import PLAN, PROC, Judge, transcript
from validator.checks import nvidia_driver as driver
from validator.plan import as_plan
from validator.plan_document import PlanDocument

FAULTS = Path(catalogue.__file__).parent / "definitions"
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
    "modprobe*": "blacklist nouveau\noptions nouveau modeset=0\nblacklist nova_core\n",
}
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.178.04  Release Build  (dvs@u)\n"

DAEMON_RUNS: dict[str, Any] = {"*cat*": "[Unit]", "*is-active*": "active", "*is-enabled*": "enabled"}


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
        PARTS | {"nvidia-smi --version": "", "command -v*": (1, ""), "ldconfig*": "", "cat*": PROC},
        "FAIL",
        "nvidia-smi: no version",
    ),
    (
        driver.test_no_part_is_of_another_version,
        PARTS | {"nvidia-smi --version": (9, "NVIDIA-SMI has failed"), "cat*": (1, "", "No such file or directory")},
        "UNPROVEN",
        "no NVIDIA driver is loaded: see nvidia_driver::test_every_promised_gpu_is_there",
    ),
    (
        driver.test_no_part_is_of_another_version,
        PARTS
        | {"nvidia-smi --version": (9, "NVIDIA-SMI has failed"), "readlink*libcuda*": "/usr/lib/libcuda.so.535.1\n"},
        "FAIL",
        "got nvidia-smi: no version; /usr/lib/libcuda.so.535.1: 535.1",
    ),
    (
        driver.test_persistence_daemon_runs,
        DAEMON_RUNS | {"nvidia-smi*": "0, 0, A, 1, Enabled, 1, 1, Default\n1, 0, A, 1, [N/A], 1, 1, Default\n"},
        "PASS",
        "",
    ),
    (driver.test_persistence_daemon_runs, DAEMON_RUNS | {"nvidia-smi*": (9, "No devices were found\n")}, "PASS", ""),
    (
        driver.test_persistence_daemon_runs,
        DAEMON_RUNS | {"nvidia-smi*": "0, 0, A, 1, Enabled, 1, 1, Default\n1, 0, A, 1, Disabled, 1, 1, Default\n"},
        "FAIL",
        "nvidia-persistenced.service runs, but persistence mode is off: GPU 1: Disabled",
    ),
    (
        driver.test_persistence_daemon_runs,
        {"*cat*": "[Unit]", "*is-active*": (3, "failed\n"), "*": "enabled\n"},
        "FAIL",
        "nvidia-persistenced.service: expected active, enabled, got failed, enabled",
    ),
    (
        driver.test_persistence_daemon_runs,
        {
            "*cat*": "[Unit]",
            "*is-active nvidia_gpu_settings_service*": "active\n",
            "*is-active*": (3, "failed\n"),
            "*": "enabled\n",
        },
        "FAIL",
        "(the DLAMI's nvidia_gpu_settings_service.service runs the daemon already: disable one of the two): expected",
    ),
    (
        driver.test_persistence_daemon_runs,
        {"*": (1, "")},
        "UNPROVEN",
        "the driver's packages have no persistence daemon",
    ),
    (driver.test_every_gpu_was_initialised, {"dmesg*": "NVRM: loading NVIDIA UNIX x86_64 Kernel Module\n"}, "PASS", ""),
    (
        driver.test_every_gpu_was_initialised,
        {"dmesg*": "NVRM: GPU 0000:4b:00.0: RmInitAdapter failed! (0x22:0x56:894)\n"},
        "FAIL",
        "the driver could not initialise a GPU: NVRM: GPU 0000:4b:00.0: RmInitAdapter failed! (0x22:0x56:894)",
    ),
    (driver.test_nouveau_is_blacklisted, NOUVEAU, "PASS", ""),
    (
        driver.test_nouveau_is_blacklisted,
        NOUVEAU | {"modprobe*": "", "for k*": "6.17.0-1019-aws missing\n"},
        "FAIL",
        "nouveau is not blacklisted",
    ),
    # nova_core: of the kernels that have it alone
    (
        driver.test_nouveau_is_blacklisted,
        NOUVEAU | {"modprobe*": "blacklist nouveau\n", "for k*": "6.17.0-1019-aws missing\n"},
        "PASS",
        "",
    ),
    (
        driver.test_nouveau_is_blacklisted,
        NOUVEAU | {"modprobe*": "blacklist nouveau\n", "for k*": "6.17.0-1019-aws missing\n7.0.0-1012-aws\n"},
        "FAIL",
        "nova_core is not blacklisted",
    ),
    (
        driver.test_nouveau_is_blacklisted,
        NOUVEAU | {"cat /proc/modules": "nova_core 1 0 - Live 0x0\n"},
        "FAIL",
        "nova_core is loaded",
    ),
    (
        driver.test_every_gpu_was_initialised,
        {"dmesg*": "NVRM: GPU 0000:01:00.0 is already bound to NovaCore.\nNVRM: No NVIDIA devices probed.\n"},
        "FAIL",
        "the driver could not initialise a GPU: NVRM: GPU 0000:01:00.0 is already bound to NovaCore.",
    ),
    (
        driver.test_every_gpu_was_initialised,
        {"dmesg*": "NVRM: GPU 0000:01:00.0 is already bound to vfio-pci.\n"},
        "PASS",
        "",
    ),
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
        "EnableGpuFirmware: expected 0 (GSP off), got 18",
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


# Of public captures: CDMM is shown in quotes, and an option that the module does not have in no line at all.
OPTIONS = {
    "cat /proc/driver/nvidia/version": PROC,
    "cat /proc/driver/nvidia/params": (
        "ResmanDebugLevel: 4294967295\nDeviceFileMode: 438\nEnableGpuFirmware: 18\nImexChannelCount: 2048\n"
        'CreateImexChannel0: 0\nGrdmaPciTopoCheckOverride: 1\nCoherentGPUMemoryMode: "driver"\nRegistryDwords: ""\n'
    ),
    "modprobe*": (
        "blacklist nouveau\noptions nvidia NVreg_GrdmaPciTopoCheckOverride=1\n"
        "options nvidia NVreg_DeviceFileMode=0666\n"
        "options nvidia_uvm uvm_disable_hmm=1\noptions nvidia NVreg_OfAnotherBranch=1\n"
    ),
}


@pytest.mark.parametrize(
    ("options", "configured", "verdict", "message"),
    [
        ({"NVreg_CoherentGPUMemoryMode": "driver", "NVreg_GrdmaPciTopoCheckOverride": "1"}, "", "PASS", ""),
        ({}, "", "PASS", ""),
        ({"NVreg_CreateImexChannel0": "1"}, "", "FAIL", "CreateImexChannel0: expected 1, got 0"),
        ({"NVreg_Unheard": "1"}, "", "FAIL", "Unheard: expected 1, got no such option"),
        ({}, "options nvidia NVreg_EnableGpuFirmware=0\n", "FAIL", "EnableGpuFirmware: expected 0, got 18"),
        (
            {}, 'options nvidia NVreg_RegistryDwords="RMBug5172204War=4" NVreg_ImexChannelCount=0x800\n', "FAIL",
            "RegistryDwords: expected RMBug5172204War=4, got ",
        ),
        # Of two settings modprobe takes the later one.
        ({}, "options nvidia NVreg_CreateImexChannel0=1\noptions nvidia NVreg_CreateImexChannel0=0\n", "PASS", ""),
    ],
)  # fmt: skip
def test_options(judge: Judge, options: dict[str, str], configured: str, verdict: str, message: str) -> None:
    planned = as_plan({**PLAN, "nvidia_driver": {**PLAN["nvidia_driver"], "options": options}})
    table = OPTIONS | {"modprobe*": OPTIONS["modprobe*"] + configured}
    outcome = judge(driver.test_options_of_the_module_are_in_effect, table, plan=planned)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


@pytest.mark.parametrize("states", [((3, "inactive\n"), (1, "disabled\n")), ("active\n", "static\n")])
@pytest.mark.parametrize(
    ("modes", "verdict", "message"),
    [
        ("0, 0, A, 1, Enabled, 1, 1, Default\n", "PASS", ""),
        ("0, 0, A, 1, Disabled, 1, 1, Default\n", "UNPROVEN", "does not keep persistence mode on (GPU 0: Disabled)"),
    ],
)
def test_image_as_found_may_keep_persistence_without_an_enabled_daemon(
    judge: Judge, states: tuple[Any, Any], modes: str, verdict: str, message: str
) -> None:
    table = {"*cat*": "[Unit]", "*is-active*": states[0], "*is-enabled*": states[1], "nvidia-smi*": modes}
    observed = as_plan(PLAN | {"origin": "observed"})
    outcome = judge(driver.test_persistence_daemon_runs, table, plan=observed)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome
    assert judge(driver.test_persistence_daemon_runs, table).verdict == "FAIL"


def test_daemon_of_a_distribution_may_have_a_version_of_its_own(judge: Judge) -> None:
    """Debian's archive has it so; the plan names that version, and any other is wrong."""
    planned = as_plan({**PLAN, "nvidia_driver": {**PLAN["nvidia_driver"], "persistence_daemon": "550.144.03"}})
    own = PARTS | {"nvidia-persistenced*": DAEMON.replace("163.01", "144.03")}
    assert judge(driver.test_no_part_is_of_another_version, own, plan=planned).verdict == "PASS"
    outcome = judge(driver.test_no_part_is_of_another_version, PARTS, plan=planned)
    assert (outcome.verdict, "got nvidia-persistenced: 550.163.01" in outcome.message) == ("FAIL", True)


REAL = transcript("nvidia_smi_without_driver")


@pytest.mark.parametrize(
    ("check", "table", "message"),
    [
        (
            driver.test_no_part_is_of_another_version,
            {**PARTS, "nvidia-smi --version": REAL["nvidia-smi --version"], "cat*": PROC},
            "expected the driver's version 550.163.01, got nvidia-smi: no version",
        ),
        (
            driver.test_no_part_is_of_another_version,
            {**PARTS, "nvidia-persistenced*": REAL["nvidia-persistenced --version"]},
            "got nvidia-persistenced: 535.171.04",
        ),
    ],
)
def test_real_programs_without_the_kernel_module(judge: Judge, check: Any, table: dict[str, Any], message: str) -> None:
    outcome = judge(check, table)
    assert (outcome.verdict, message in outcome.message) == ("FAIL", True), outcome


EFI_ON = " 006   0   0   0   1\n"
KEYS = (
    "0a1b2c3d I------     1 perm 1f030000     0     0 asymmetri "
    "Amazon Linux Secure Boot Signing: 8f3c X509.rsa 3a2b1c0d []\n"
)


@pytest.mark.parametrize(
    ("variable", "signer", "verdict", "message"),
    [
        ((1, ""), "", "PASS", ""),
        (" 6 0 0 0 0\n", "", "PASS", ""),
        (EFI_ON, "Amazon Linux Secure Boot Signing\n", "PASS", ""),
        (EFI_ON, "", "FAIL", "nobody signed the module nvidia"),
        (EFI_ON, "DKMS module signing key\n", "FAIL", "nvidia is signed by DKMS module signing key, which no keyring"),
    ],
)
def test_secure_boot(judge: Judge, variable: Any, signer: str, verdict: str, message: str) -> None:
    table = {"od *": variable, "modinfo*": signer, "cat /proc/keys": KEYS}
    outcome = judge(driver.test_secure_boot_lets_the_module_load, table)
    assert (outcome.verdict, message in outcome.message) == (verdict, True), outcome


def test_the_fault_of_secure_boot_is_what_its_check_finds(judge: Judge, tmp_path: Path) -> None:
    """The file that the fault writes, with another folder in place of /sys/firmware, as `od` shows it."""
    (fault,) = catalogue.load(FAULTS, only=["secure-boot-refuses-the-module"])
    script = "\n".join(line for line in fault.inject.splitlines() if not line.startswith("mount "))
    subprocess.run(["sh", "-ec", script.replace("/sys/firmware", str(tmp_path))], check=True)
    (variable,) = (tmp_path / "efi/efivars").iterdir()
    shown = subprocess.run(["od", "-An", "-tu1", variable], check=True, capture_output=True, text=True).stdout
    table = {f"od -An -tu1 /sys/firmware/efi/efivars/{variable.name}": shown, "modinfo*": "", "cat /proc/keys": KEYS}
    outcome = judge(driver.test_secure_boot_lets_the_module_load, table)
    assert (outcome.verdict, "nobody signed the module" in outcome.message) == ("FAIL", True), outcome
