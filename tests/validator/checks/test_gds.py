"""Each check of GPUDirect Storage, once green and once red with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.validator.checks.conftest import METADATA, FakeMachine, Judge
from validator.checks import gds
from validator.plan import as_plan
from validator.plan_document import PlanDocument

TYPES = [{"name": "g5.12xlarge", "gpu_count": 4}, {"name": "m5.large", "gpu_count": 0}]
SECTION = {
    "version": "2.29.4", "tools": "1.18.1.6", "build": {"NVFS_MAX_PEER_DEVS": 128, "NVFS_MAX_PCI_DEPTH": 16},
    "packages": {"nvidia-fs-dkms": "2.29.4-1"},
}  # fmt: skip
OS = {"family": "debian", "id": "ubuntu"}
PLAN = as_plan({"instance_types": TYPES, "os": OS, "gds": SECTION})
UNKNOWN = as_plan({"instance_types": TYPES, "os": OS, "gds": {k: v for k, v in SECTION.items() if k != "tools"}})
KERNEL, MAGIC = "7.0.0-1014-aws", "7.0.0-1014-aws SMP mod_unload"
FITS = (
    f"kernel {KERNEL}\nmodule nvidia-fs /a.ko\nmagic nvidia-fs {MAGIC}\nneeds nvidia-fs 0x0a nvidia_p2p_get_pages\n"
    f"module nvidia /b.ko\nmagic nvidia {MAGIC}\nexports nvidia 0x0a nvidia_p2p_get_pages\n"
)
SETTINGS = "MAKE[0]=\"NVFS_MAX_PCI_DEPTH=16 NVFS_MAX_PEER_DEVS=128 'make' -j32 KVER=${kernelver}\"\n"
CONFIGURATION = '{\n  // a comment\n  "logging": {"level": "ERROR"}, // https://example.com\n  "properties": {}\n}\n'
CHECKED = (
    " GDS release version: 1.18.1.6\n nvidia_fs version:  2.29 nvidia_fs minimum version: 2.12\n Platform: x86_64\n"
    " NVMe               : compat\n"
)
WITHOUT_MODULE = " GDS release version: 1.18.1.6\n nvidia_fs minimum version: 2.12\n"
INSTALLED = "nvidia-fs-dkms installed"
NODE = "character special file 666\n"


def library(value: int) -> dict[str, Any]:
    return {"env*": json.dumps({"value": value, "file": "/usr/local/cuda/lib/libcufile.so.1.18.1.6"})}


CASES: list[tuple[Any, PlanDocument, dict[str, Any], str, str]] = [
    (gds.test_module_on_disk_is_the_planned_one, PLAN, {"for k*": f"{KERNEL} 2.29.4\n"}, "PASS", ""),
    (
        gds.test_module_on_disk_is_the_planned_one, PLAN, {"for k*": f"{KERNEL} missing\n"}, "FAIL",
        f"module nvidia-fs on disk: expected 2.29.4, got {KERNEL}: missing",
    ),
    (gds.test_module_fits_the_driver, PLAN, {"PATH*": FITS}, "PASS", ""),
    (
        gds.test_module_fits_the_driver, PLAN, {"PATH*": FITS.replace("needs nvidia-fs 0x0a", "needs nvidia-fs 0x0b")},
        "FAIL", "built against other symbols: nvidia_p2p_get_pages 0x0b, exported: 0x0a",
    ),
    (
        gds.test_module_fits_the_driver, PLAN, {"PATH*": FITS[: FITS.index("exports")]},
        "UNPROVEN", f"no symbols of nvidia are known for {KERNEL}",
    ),
    (gds.test_tables_have_the_planned_sizes, PLAN, {"cat*": SETTINGS}, "PASS", ""),
    (
        gds.test_tables_have_the_planned_sizes, PLAN, {"cat*": (1, "")}, "FAIL",
        "sizes in /etc/dkms/nvidia-fs.conf: expected {'NVFS_MAX_PEER_DEVS': '128', 'NVFS_MAX_PCI_DEPTH': '16'}, got {}",
    ),
    (gds.test_configuration_can_be_read, PLAN, {"cat*": CONFIGURATION}, "PASS", ""),
    (
        gds.test_configuration_can_be_read, PLAN, {"cat*": CONFIGURATION[:40]}, "FAIL",
        "/etc/cufile.json is not JSON: ",
    ),
    (gds.test_packages_are_the_planned_ones, PLAN, {"dpkg-query*": f"{INSTALLED} 2.29.4-1\n"}, "PASS", ""),
    (gds.test_packages_are_the_planned_ones, PLAN, {"dpkg-query*": f"{INSTALLED} 2.30.1-1\n"}, "FAIL", "2.30.1"),
    (gds.test_packages_are_held, PLAN, {"apt-mark*": "nvidia-fs-dkms\n"}, "PASS", ""),
    (gds.test_packages_are_held, PLAN, {"apt-mark*": ""}, "FAIL", "would change them: nvidia-fs-dkms"),
    (gds.test_library_is_the_planned_one, PLAN, library(1180), "PASS", ""),
    (gds.test_library_is_the_planned_one, PLAN, library(1150), "FAIL", "1.15"),
    (gds.test_library_is_the_planned_one, UNKNOWN, library(1200), "UNPROVEN", "the plan names no version of cuFile"),
    (gds.test_module_is_loaded_with_the_driver, PLAN, {"cat*": "2.29.4\n", "stat*": NODE}, "PASS", ""),
    (
        gds.test_module_is_loaded_with_the_driver, PLAN, {"cat*": (1, ""), "stat*": (1, "")}, "FAIL",
        "{'module': 'not loaded', '/dev/nvidia-fs0': 'missing'}",
    ),
    (gds.test_gdscheck_finds_the_module, PLAN, {"*gdscheck*": CHECKED}, "PASS", ""),
    (gds.test_gdscheck_finds_the_module, UNKNOWN, {"*gdscheck*": CHECKED}, "PASS", ""),
    (
        gds.test_gdscheck_finds_the_module, PLAN, {"*gdscheck*": WITHOUT_MODULE}, "FAIL",
        "exited with status 0: nvidia_fs version: expected 2.29, got none",
    ),
    (gds.test_gdscheck_finds_the_module, PLAN, {"*gdscheck*": (127, "")}, "FAIL", "exited with status 127"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "given", "table", "verdict", "message"), CASES)
def test_gds(judge: Judge, check: Any, given: PlanDocument, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=given)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize("check", [gds.test_module_is_loaded_with_the_driver, gds.test_gdscheck_finds_the_module])
def test_machine_without_gpus_proves_nothing(judge: Judge, check: Any) -> None:
    found = judge(check, {}, plan=PLAN, machine=FakeMachine(METADATA, instance_type="m5.large"))
    assert (found.verdict, found.message) == ("UNPROVEN", "m5.large has no GPU")
