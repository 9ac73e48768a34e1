"""Each GDRCopy check, once green and once red with its message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import METADATA, FakeMachine, Judge
from validator.checks import gdrcopy
from validator.plan import as_plan
from validator.plan_document import PlanDocument

TYPES = [{"name": "g5.12xlarge", "gpu_count": 4}, {"name": "m5.large", "gpu_count": 0}]
WITHOUT_CUDA = as_plan({"instance_types": TYPES, "gdrcopy": {"version": "2.5.1"}})
PLAN = as_plan({"instance_types": TYPES, "gdrcopy": {"version": "2.5.1"}, "cuda": {"version": "12.4"}})
FILE = "/usr/local/lib/libgdrapi.so.2.5"
LIBRARY = {"ldconfig*": f"\tlibgdrapi.so.2 (libc6,x86-64) => {FILE}\n", "readlink*": f"{FILE}\n"}
NODE = "character special file 666\n"
BUILT = "6.1.0-44, x86_64: installed\n"
PASSED = "Total: 28, Passed: 28, Failed: 0, Waived: 0\n"

CASES: list[tuple[Any, PlanDocument, dict[str, Any], str, str]] = [
    (gdrcopy.test_module_on_disk_is_the_planned_one, PLAN, {"for k*": "6.1.0-44 2.5\n"}, "PASS", ""),
    (
        gdrcopy.test_module_on_disk_is_the_planned_one, PLAN, {"for k*": "6.1.0-44 2.5\n6.1.0-50 2.4\n"}, "FAIL",
        "module gdrdrv on disk: expected 2.5, got 6.1.0-50: 2.4",
    ),
    (gdrcopy.test_dkms_has_the_planned_release, PLAN, {"dkms*": f"gdrdrv/2.5.1, {BUILT}"}, "PASS", ""),
    (gdrcopy.test_dkms_has_the_planned_release, PLAN, {"dkms*": f"gdrdrv, 2.5.1, {BUILT}"}, "PASS", ""),
    (
        gdrcopy.test_dkms_has_the_planned_release, PLAN, {"dkms*": "gdrdrv/2.5.2, 6.1.0-44, x86_64: installed\n"},
        "FAIL", "expected 2.5.1, got 2.5.2",
    ),
    (gdrcopy.test_dkms_has_the_planned_release, PLAN, {"dkms*": "gdrdrv/2.5.1: added\n"}, "FAIL", "expected 2.5.1"),
    (gdrcopy.test_library_is_the_planned_one, PLAN, LIBRARY, "PASS", ""),
    (
        gdrcopy.test_library_is_the_planned_one, PLAN, {k: v.replace("2.5", "2.4") for k, v in LIBRARY.items()}, "FAIL",
        "libgdrapi.so.2: expected version 2.5, got /usr/local/lib/libgdrapi.so.2.4",
    ),
    (gdrcopy.test_library_is_the_planned_one, PLAN, {"ldconfig*": ""}, "FAIL", "no libgdrapi.so.2 is on the loader"),
    (gdrcopy.test_module_is_loaded_beside_the_driver, PLAN, {"cat*": "2.5\n", "stat*": NODE}, "PASS", ""),
    (
        gdrcopy.test_module_is_loaded_beside_the_driver, PLAN, {"cat*": (1, ""), "stat*": (1, "")}, "FAIL",
        "{'module': 'not loaded', '/dev/gdrdrv': 'missing'}",
    ),
    (
        gdrcopy.test_module_is_loaded_beside_the_driver, PLAN,
        {"cat*": "2.5\n", "stat*": "character special file 600\n"}, "FAIL", "character special file 600",
    ),
    (gdrcopy.test_sanity_passes, PLAN, {"*sanity": PASSED}, "PASS", ""),
    (
        gdrcopy.test_sanity_passes, PLAN, {"*sanity": (1, "Total: 28, Passed: 27, Failed: 1, Waived: 0\n")}, "FAIL",
        "/usr/local/bin/gdrcopy_sanity exited with status 1: Total: 28, Passed: 27, Failed: 1, Waived: 0",
    ),
    (gdrcopy.test_sanity_passes, PLAN, {"*sanity": "Total: 0, Passed: 0, Failed: 0, Waived: 0\n"}, "FAIL", "Passed: 0"),
    (gdrcopy.test_sanity_passes, PLAN, {"*sanity": ""}, "FAIL", "no output"),
    (gdrcopy.test_sanity_passes, WITHOUT_CUDA, {}, "UNPROVEN",
     "GDRCopy's programs need the CUDA toolkit, which is not planned"),
]  # fmt: skip


@pytest.mark.parametrize(("check", "given", "table", "verdict", "message"), CASES)
def test_gdrcopy(
    judge: Judge, check: Any, given: PlanDocument, table: dict[str, Any], verdict: str, message: str
) -> None:
    found = judge(check, table, plan=given)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize("check", [gdrcopy.test_module_is_loaded_beside_the_driver, gdrcopy.test_sanity_passes])
def test_machine_without_gpus_proves_nothing(judge: Judge, check: Any) -> None:
    found = judge(check, {}, plan=PLAN, machine=FakeMachine(METADATA, instance_type="m5.large"))
    assert (found.verdict, found.message) == ("UNPROVEN", "m5.large has no GPU")
