"""Each CUDA check, once green and once red with its message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.validator.checks.conftest import Judge
from validator.checks import cuda
from validator.plan import as_plan
from validator.plan_document import PlanDocument

NVCC = (
    "nvcc: NVIDIA (R) Cuda compiler driver\nCuda compilation tools, release 12.4, V12.4.131\nBuild cuda_12.4.r12.4/x\n"
)
LOGIN = "/usr/local/cuda/bin/nvcc\nLD_LIBRARY_PATH="
CUDA = {"version": "12.4", "compatibility": "native", "packages": {"cuda-toolkit-12-4": "12.4.1-1"}}
COMPAT = {"version": "13.0", "compatibility": "forward", "packages": {"cuda-compat-13-0": "580.95.05-1"}}
INSTALLED = {"dpkg-query*": "cuda-toolkit-12-4 installed 12.4.1-1\n"}


def plan(section: dict[str, Any] | None = None, family: str = "debian") -> PlanDocument:
    return as_plan({"os": {"family": family}, "nvidia_driver": {"version": "550.163.01"}, "cuda": section or CUDA})


def said(value: Any, file: str) -> str:
    return json.dumps({"value": value, "file": file})


def libraries(runtime: int, driver: int, libcuda: str = "/usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01") -> Any:
    return {
        "*cudaRuntimeGetVersion*": said(runtime, "/usr/local/cuda-12.4/targets/x86_64-linux/lib/libcudart.so.12.4.127"),
        "*cuDriverGetVersion*": said(driver, libcuda),
    }


NATIVE = libraries(12040, 12040)
FORWARD = libraries(13000, 13000, "/usr/local/cuda-13.0/compat/libcuda.so.580.95.05")
CASES: list[tuple[Any, dict[str, Any], PlanDocument, str, str]] = [
    (cuda.test_compiler_is_the_planned_release, {"*nvcc*": NVCC}, plan(), "PASS", ""),
    (
        cuda.test_compiler_is_the_planned_release,
        {"*nvcc*": NVCC.replace("release 12.4", "release 12.6")},
        plan(),
        "FAIL",
        "nvcc --version (/usr/local/cuda/bin): expected '12.4', got '12.6'",
    ),
    (
        cuda.test_compiler_is_the_planned_release,
        {"*nvcc*": (127, "", "sh: 1: /usr/local/cuda/bin/nvcc: not found")},
        plan(),
        "FAIL",
        "/usr/local/cuda/bin/nvcc --version exited with status 127: sh: 1: /usr/local/cuda/bin/nvcc: not found",
    ),
    (cuda.test_link_leads_to_the_planned_toolkit, {"readlink*": "/usr/local/cuda-12.4\n"}, plan(), "PASS", ""),
    (
        cuda.test_link_leads_to_the_planned_toolkit,
        {"readlink*": "/usr/local/cuda-12.6\n"},
        plan(),
        "FAIL",
        "/usr/local/cuda: expected '/usr/local/cuda-12.4', got '/usr/local/cuda-12.6'",
    ),
    (cuda.test_runtime_on_the_loader_path_is_the_planned_one, NATIVE, plan(), "PASS", ""),
    (
        cuda.test_runtime_on_the_loader_path_is_the_planned_one,
        libraries(12060, 12040),
        plan(),
        "FAIL",
        "libcudart.so.12.4.127: expected '12.4', got '12.6'",
    ),
    (
        cuda.test_runtime_on_the_loader_path_is_the_planned_one,
        {"*cudaRuntime*": (1, "", "Traceback\nOSError: libcudart.so.12: cannot open shared object file\n")},
        plan(),
        "FAIL",
        "a program cannot use libcudart.so.12 (cudaRuntimeGetVersion): OSError: libcudart.so.12: cannot open",
    ),
    (cuda.test_login_shells_find_the_toolkit, {"env*": LOGIN}, plan(), "PASS", ""),
    (
        cuda.test_login_shells_find_the_toolkit,
        {"env*": (1, "LD_LIBRARY_PATH=")},
        plan(),
        "FAIL",
        "nvcc of a login shell: expected /usr/local/cuda/bin/nvcc, got none",
    ),
    (cuda.test_login_shells_find_the_driver_s_libcuda, {"env*": LOGIN}, plan(), "PASS", ""),
    (
        cuda.test_login_shells_find_the_driver_s_libcuda,
        {"env*": LOGIN + "/opt/x:/usr/local/cuda-12.6/compat"},
        plan(),
        "FAIL",
        "LD_LIBRARY_PATH of a login shell: /usr/local/cuda-12.6/compat precedes the driver's libcuda",
    ),
    (cuda.test_driver_runs_this_runtime, NATIVE, plan(), "PASS", ""),
    (cuda.test_driver_runs_this_runtime, libraries(12040, 12080), plan(), "PASS", ""),
    (
        cuda.test_driver_runs_this_runtime,
        libraries(12060, 12040),
        plan(),
        "FAIL",
        "supports CUDA 12.4, the runtime is 12.6: not supported with native compatibility as planned",
    ),
    (
        cuda.test_driver_runs_this_runtime,
        libraries(12060, 12040),
        plan(CUDA | {"compatibility": "minor"}),
        "PASS",
        "",
    ),
    (
        cuda.test_driver_runs_this_runtime,
        libraries(13000, 12040),
        plan(CUDA | {"compatibility": "minor"}),
        "FAIL",
        "minor compatibility as planned",
    ),
    (cuda.test_driver_runs_this_runtime, FORWARD, plan(COMPAT), "PASS", ""),
    (
        cuda.test_driver_runs_this_runtime,
        libraries(13000, 12040),
        plan(COMPAT),
        "FAIL",
        "forward compatibility as planned",
    ),
    (cuda.test_libcuda_is_the_planned_one, NATIVE, plan(), "PASS", ""),
    (
        cuda.test_libcuda_is_the_planned_one,
        FORWARD,
        plan(),
        "FAIL",
        "(/usr/local/cuda-13.0/compat/libcuda.so.580.95.05): expected '550.163.01', got '580.95.05'",
    ),
    (cuda.test_libcuda_is_the_planned_one, FORWARD, plan(COMPAT), "PASS", ""),
    (cuda.test_libcuda_is_the_planned_one, NATIVE, plan(COMPAT), "FAIL", "expected '580.95.05', got '550.163.01'"),
    (
        cuda.test_no_unplanned_compat_library,
        {"dpkg-query*Status-Status}' dpkg": "installed", "dpkg-query*": (1, "", "no packages found")},
        plan(),
        "PASS",
        "",
    ),
    (
        cuda.test_no_unplanned_compat_library,
        {"dpkg-query*": (2, "", "dpkg-query: error: parsing file '/var/lib/dpkg/status'")},
        plan(),
        "UNPROVEN",
        "the package database cannot be read",
    ),
    (
        cuda.test_no_unplanned_compat_library,
        {"dpkg-query*": "cuda-compat-13-0 580.95.05-1 install ok installed\n"},
        plan(COMPAT),
        "PASS",
        "",
    ),
    (
        cuda.test_no_unplanned_compat_library,
        {"dpkg-query*": "cuda-compat-13-0 580.159.04-1 install ok installed\n"},
        plan(),
        "FAIL",
        "cuda-compat-13-0 580.159.04-1",
    ),
    (
        cuda.test_no_unplanned_compat_library,
        {"rpm -qa*": "cuda-compat-12-8 570.124.06\n"},
        plan(family="redhat"),
        "FAIL",
        "cuda-compat-12-8 570.124.06",
    ),
    (cuda.test_packages_are_the_planned_ones, INSTALLED, plan(), "PASS", ""),
    (
        cuda.test_packages_are_the_planned_ones,
        {"dpkg-query*": "cuda-toolkit-12-4 config-files 12.4.1-1\n"},
        plan(),
        "FAIL",
        "got {'cuda-toolkit-12-4': 'missing'}",
    ),
    (
        cuda.test_packages_are_the_planned_ones,
        {},
        plan({"version": "12.4", "provided_by": "dlami 20251230"}),
        "UNPROVEN",
        "cuda is the base AMI's (dlami 20251230)",
    ),
    (cuda.test_packages_are_held, {"apt-mark*": "cuda-toolkit-12-4\n"}, plan(), "PASS", ""),
    (cuda.test_packages_are_held, {"apt-mark*": "linux\n"}, plan(), "FAIL", "would change them: cuda-toolkit-12-4"),
]


@pytest.mark.parametrize(("check", "table", "planned", "verdict", "message"), CASES)
def test_cuda(
    judge: Judge, check: Any, table: dict[str, Any], planned: PlanDocument, verdict: str, message: str
) -> None:
    found = judge(check, table, plan=planned)
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_soname_of_cuda_11_has_its_minor_version(judge: Judge) -> None:
    table = {
        "*libcudart.so.11.0 cudaRuntimeGetVersion*": said(11080, "/usr/local/cuda-11.8/lib64/libcudart.so.11.8.89")
    }
    found = judge(cuda.test_runtime_on_the_loader_path_is_the_planned_one, table, plan=plan(CUDA | {"version": "11.8"}))
    assert found.verdict == "PASS", found
