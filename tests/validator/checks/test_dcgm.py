"""Each DCGM check, once green and once red with its message."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from tests.validator.checks.conftest import INSTANCE, Judge
from validator.checks import dcgm
from validator.plan import as_plan

GPU = "| {0} | Name: NVIDIA A10G |\n| | PCI Bus ID: 00000000:00:1{1}.0 |\n| | Device UUID: GPU-0{0} |\n"
BOTH = "2 GPUs found.\n" + GPU.format(0, "B") + GPU.format(1, "C") + "0 NvSwitches found.\n"
HOSTENGINE = "Version : 4.4.2\nBuild ID : 27\nBuild Type : Release\n"
RUNNING = "ActiveState=active\nNRestarts=0\n"
DOWN = "ActiveState=inactive\nNRestarts=0\n"
NOBODY = "Error: unable to establish a connection to the specified host: localhost\n"


class Machine:
    """An instance of a type that the plan knows."""

    instance_id = INSTANCE

    def __init__(self, instance_type: str = "g5.12xlarge") -> None:
        self.instance_type = instance_type


PLAN = as_plan(
    {
        "os": {"family": "debian"},
        "instance_types": [{"name": "g5.12xlarge", "gpu_count": 2}, {"name": "m5.large", "gpu_count": 0}],
        "dcgm": {"version": "4.4.2", "packages": {"datacenter-gpu-manager-4-cuda12": "1:4.4.2-1"}},
    }
)

CASES: list[tuple[Any, dict[str, Any], str, str]] = [
    (dcgm.test_host_engine_starts_at_boot, {"systemctl*": "enabled\n"}, "PASS", ""),
    (
        dcgm.test_host_engine_starts_at_boot,
        {"systemctl*": (1, "disabled\n")},
        "FAIL",
        "nvidia-dcgm.service at boot: expected 'enabled', got 'disabled'",
    ),
    (dcgm.test_host_engine_runs, {"systemctl*": RUNNING}, "PASS", ""),
    (dcgm.test_host_engine_runs, {"systemctl*": DOWN}, "FAIL", "nvidia-dcgm.service: expected"),
    (dcgm.test_host_engine_runs, {"systemctl*": RUNNING.replace("0", "3")}, "FAIL", "'NRestarts': '3'"),
    (dcgm.test_every_gpu_is_discovered, {"dcgmi*": BOTH}, "PASS", ""),
    (
        dcgm.test_every_gpu_is_discovered,
        {"dcgmi*": "1 GPU found.\n" + GPU.format(0, "B")},
        "FAIL",
        "dcgmi discovery -l on g5.12xlarge: expected 2 GPUs, got 1 (0000:00:1b.0)",
    ),
    (dcgm.test_every_gpu_is_discovered, {"dcgmi*": BOTH.replace("found.", "found (Active).")}, "PASS", ""),  # DCGM 4.5
    (
        dcgm.test_every_gpu_is_discovered,
        {"dcgmi*": re.sub(r"Name: .{11}", "Name: <<<NULL>>>", BOTH, count=1)},  # NVIDIA/DCGM#229, H100
        "FAIL",
        "dcgmi discovery -l: DCGM could not read 0000:00:1b.0: no name",
    ),
    (
        dcgm.test_every_gpu_is_discovered,
        {"dcgmi*": (255, NOBODY)},
        "FAIL",
        "dcgmi discovery -l exited with status 255: Error: unable to establish a connection to the",
    ),
    (
        dcgm.test_packages_are_the_planned_ones,
        {"dpkg-query*": "datacenter-gpu-manager-4-cuda12 installed 1:4.4.2-1\n"},
        "PASS",
        "",
    ),
    (
        dcgm.test_packages_are_the_planned_ones,
        {"dpkg-query*": "datacenter-gpu-manager-4-cuda12 installed 1:4.5.3-1\n"},
        "FAIL",
        "'1:4.5.3-1'",
    ),
    (dcgm.test_packages_are_held, {"apt-mark*": "datacenter-gpu-manager-4-cuda12\n"}, "PASS", ""),
    (dcgm.test_packages_are_held, {"apt-mark*": ""}, "FAIL", "change them: datacenter-gpu-manager-4-cuda12"),
]


@pytest.mark.parametrize(("check", "table", "verdict", "message"), CASES)
def test_dcgm(judge: Judge, check: Any, table: dict[str, Any], verdict: str, message: str) -> None:
    found = judge(check, table, plan=PLAN, machine=Machine())
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("program", "reply", "verdict", "message"),
    [
        ("dcgmi", "\ndcgmi  version: 4.4.2\n\n", "PASS", ""),
        ("nv-hostengine", HOSTENGINE, "PASS", ""),
        ("nv-hostengine", HOSTENGINE.replace("4.4.2", "4.2.3"), "FAIL", "expected '4.4.2', got '4.2.3'"),
        (
            "dcgmi",
            (127, "", "sh: 1: dcgmi: not found"),
            "FAIL",
            "dcgmi --version exited with status 127: sh: 1: dcgmi: not found",
        ),
    ],
)
def test_versions(judge: Judge, program: str, reply: Any, verdict: str, message: str) -> None:
    table = {f"{program} --version": reply}
    found = judge(dcgm.test_program_is_the_planned_version, table, plan=PLAN, program=program)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(("reply", "verdict"), [(DOWN, "PASS"), (RUNNING, "FAIL")])
def test_host_engine_is_inactive_without_gpus(judge: Judge, reply: str, verdict: str) -> None:
    machine = Machine("m5.large")
    assert judge(dcgm.test_host_engine_runs, {"systemctl*": reply}, plan=PLAN, machine=machine).verdict == verdict


def diagnosed(status: str = "Pass", **more: Any) -> str:
    """As DCGM 4 prints it; DCGM 3 calls the GPU gpu_id, and the document DCGM GPU Diagnostic."""
    first = {"entity_group": "GPU", "entity_id": 0, "status": "Pass"}
    gpus = [first, first | {"entity_id": 1, "status": status} | more]
    software = {"name": "software", "results": [{"status": "Pass"}]}
    pcie = {"name": "pcie", "results": [{"gpu_id": "0", "status": "Pass"}]}
    tests = [software, {"name": "memory", "results": gpus}, pcie]
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Deployment", "tests": tests}]}})


XID = [{"error_id": 97, "warning": "GPU 1 had an uncorrectable memory error"}]
SKIPPED = diagnosed().replace('"gpu_id": "0", "status": "Pass"', '"gpu_id": "0", "status": "Skip"')
# DCGM 4.5.3 where persistence mode is off, of public test data and a SageMaker HyperPod node: every other test passes.
PERSISTENCE = {"error_category": 8, "error_id": 29, "error_severity": 5, "warning": "Persistence Mode: is disabled."}
WITHOUT_PERSISTENCE = json.dumps(
    {
        "DCGM Diagnostic": {
            "test_categories": [
                {
                    "category": "Deployment",
                    "tests": [
                        {
                            "name": "software", "test_summary": {"status": "Fail"},
                            "results": [
                                {"entity_group": "GPU", "entity_id": 0, "status": "Fail", "warnings": [PERSISTENCE]}
                            ],
                        }
                    ],
                },
                {"category": "Hardware", "tests": [{"name": "memory", "results": [{"status": "Pass"}]}]},
            ]
        },
        "metadata": {"version": "4.5.3", "Driver Version Detected": "580.126.09"},
    }
)  # fmt: skip


def summed_up(summary: dict[str, Any] | None, *results: dict[str, Any], more: dict[str, Any] | None = None) -> str:
    """As DCGM 4 prints a test: what it found of no GPU is in its summary alone; of a test that did not run, the name.

    Source: NVIDIA/DCGM 4, dcgmi/Diag.cpp (HelperJsonAddResult, HelperJsonAddTestSummary) and its tests.
    """
    test = {"name": "pcie"} | ({"results": list(results)} if results else {})
    tests = [{"name": "memory", "results": [GPU_PASSES]}, test | ({"test_summary": summary} if summary else {})]
    tests += [more] if more else []
    return json.dumps({"DCGM Diagnostic": {"test_categories": [{"category": "Hardware", "tests": tests}]}})


GPU_PASSES = {"entity_group": "GPU", "entity_group_id": 1, "entity_id": 0, "status": "Pass"}
CUDA_ERROR = {"error_category": 6, "error_id": 51, "error_severity": 1, "warning": "Error using CUDA API cuInit"}
OF_GPU = {
    "error_category": 10,
    "error_id": 52,
    "error_severity": 2,
    "warning": "Found 3 faulty memory elements on GPU 0",
}
DIAGNOSTICS = [
    (summed_up(None), "UNPROVEN", "skipped pcie; passed memory"),
    (summed_up({"status": "Skip", "info": ["not for this GPU"]}), "UNPROVEN", "skipped pcie; passed memory"),
    (summed_up({"status": "Pass"}, GPU_PASSES), "PASS", ""),
    ((226, summed_up({"status": "Fail", "warnings": [CUDA_ERROR]})), "FAIL", "pcie: Fail: Error using CUDA API cuInit"),
    (
        (226, summed_up({"status": "Fail", "warnings": [CUDA_ERROR]}, GPU_PASSES)),
        "FAIL",
        "dcgmi diag -r 2: pcie: Fail: Error using CUDA API cuInit",
    ),
    ((226, summed_up({"status": "Fail"}, GPU_PASSES)), "FAIL", "dcgmi diag -r 2: pcie: Fail"),
    (
        (
            226,
            summed_up({"status": "Fail", "warnings": [OF_GPU]}, GPU_PASSES | {"status": "Fail", "warnings": [OF_GPU]}),
        ),
        "FAIL",
        "dcgmi diag -r 2: pcie (GPU 0): Fail: Found 3 faulty memory elements on GPU 0",
    ),
    ((226, WITHOUT_PERSISTENCE), "FAIL", "dcgmi diag -r 2: software (GPU 0): Fail: Persistence Mode: is disabled."),
    (diagnosed(), "PASS", ""),
    (diagnosed("Fail", warnings=XID), "FAIL", "memory (GPU 1): Fail: GPU 1 had an uncorrectable memory error"),
    (diagnosed("Warn", warnings=["retired pages"]), "FAIL", "dcgmi diag -r 2: memory (GPU 1): Warn: retired pages"),
    ((1, diagnosed("Fail")), "FAIL", "memory (GPU 1): Fail"),
    ((226, diagnosed()), "FAIL", "dcgmi diag -r 2: exit status 226"),
    (SKIPPED, "UNPROVEN", "dcgmi diag -r 2: skipped pcie; passed memory, software"),
    ((1, "Error: unable to establish a connection"), "FAIL", "printed no result"),
    ("{}", "FAIL", "expected test_categories"),
    ('{"a": {"test_categories": []}}', "FAIL", "it has no test"),
    ('{"a": {"test_categories": [{"tests": [{"name": "x", "results": [{}]}]}]}}', "FAIL", "unexpected form of a test"),
]


@pytest.mark.parametrize(("printed", "verdict", "message"), DIAGNOSTICS)
def test_diagnostics(judge: Judge, printed: Any, verdict: str, message: str) -> None:
    found = judge(dcgm.test_diagnostics_pass, {"dcgmi diag*": printed, "{*": (1, "")}, plan=PLAN, machine=Machine())
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_diagnostics_of_a_replica_prove_nothing(judge: Judge) -> None:
    packages = "yes\tdatacenter-gpu-manager-4-core\t1:4.4.2-1\tNVIDIA Datacenter GPU Manager (gpu-ami replica)\n"
    table = {"dcgmi diag*": diagnosed(), "{*": packages}
    found = judge(dcgm.test_diagnostics_pass, table, plan=PLAN, machine=Machine())
    assert (found.verdict, "datacenter-gpu-manager-4-core of the local region" in found.message) == ("UNPROVEN", True)
    found = judge(dcgm.test_diagnostics_pass, {}, plan=PLAN, machine=Machine("m5.large"))
    assert (found.verdict, found.message) == ("UNPROVEN", "m5.large has no GPU")


@pytest.mark.parametrize(
    ("printed", "verdict", "message"),
    [
        (
            WITHOUT_PERSISTENCE,
            "UNPROVEN",
            "only settings of this image, no GPU fault: software (GPU 0): Fail: Persist",
        ),
        (WITHOUT_PERSISTENCE.replace('"error_severity": 5', '"error_severity": 2'), "FAIL", "software (GPU 0): Fail"),
        (WITHOUT_PERSISTENCE.replace('"error_severity": 5, ', ""), "FAIL", "software (GPU 0): Fail"),
        (WITHOUT_PERSISTENCE.replace('[{"status": "Pass"}]', '[{"status": "Fail"}]'), "FAIL", "memory: Fail"),
        (
            summed_up(
                {"status": "Fail", "warnings": [CUDA_ERROR]},
                GPU_PASSES | {"status": "Skip"},
                more={"name": "software", "results": [GPU_PASSES | {"status": "Fail", "warnings": [PERSISTENCE]}]},
            ),
            "FAIL",
            "pcie: Fail: Error using CUDA API cuInit",
        ),
    ],
)
def test_settings_of_an_image_as_found_are_no_fault_of_a_gpu(
    judge: Judge, printed: str, verdict: str, message: str
) -> None:
    observed = as_plan(PLAN | {"origin": "observed"})
    table = {"dcgmi diag*": (226, printed), "{*": (1, "")}
    found = judge(dcgm.test_diagnostics_pass, table, plan=observed, machine=Machine())
    assert (found.verdict, message in found.message) == (verdict, True), found
