"""Checks of what GPUs compute, once green and red with each message."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.scripted_host import table_host
from tests.validator.checks.conftest import PLAN, Judge
from tests.validator.probes.test_compute import MACHINE, NO_DEVICE, WRONG, gpu
from validator.checks import compute as checks
from validator.plan import as_plan
from validator.plan_document import PlanDocument
from validator.probes import compute

UNFINISHED = {"why": "w", "step": "cuInit"}
SMI = "".join(f"{index}, GPU-0000000{index}-1, NVIDIA A10G, 23028, 8.6\n" for index in range(2))
TOPOLOGY = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \t{0}\t0-7\nGPU1\t{0}\t X \t0-7\n"


def plan(count: int = 2, **changed: Any) -> PlanDocument:
    (row,) = PLAN["instance_types"]
    kind = row | {"gpu_count": count, "nvswitch": False} | changed
    kind["gpu"] = row["gpu"] | {"name": "NVIDIA A10G", "memory_mib": 23028, "compute_capability": "8.6"}
    return as_plan(PLAN | {"instance_types": [kind]})


def result(*rows: dict[str, Any], **machine: Any) -> compute.Compute:
    gpus = rows or (gpu(0), gpu(1))
    return compute.read("".join(json.dumps(row) + "\n" for row in (MACHINE | machine, *gpus)))


@pytest.mark.parametrize(
    ("answer", "verdict", "message"),
    [
        (checks.Answer(result()), "PASS", ""),
        (
            checks.Answer(compute.read(json.dumps(MACHINE | {"error": NO_DEVICE}))), "FAIL",
            "CUDA does not start: cuInit: cuInit: CUDA_ERROR_NO_DEVICE (100): no GPU",
        ),
        (
            checks.Answer(compute.Compute(), "the compute probe printed no result"), "FAIL",
            "the compute probe printed no result",
        ),
        (
            checks.Answer(compute.read(json.dumps(MACHINE | {"count": 0, "unfinished": UNFINISHED}))),
            "FAIL", "CUDA starts, but shows no GPU: w; its last step: cuInit",
        ),
    ],
)  # fmt: skip
def test_cuda_starts(judge: Judge, answer: checks.Answer, verdict: str, message: str) -> None:
    found = judge(checks.test_cuda_starts, {}, answer=answer)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("computed", "verdict", "message"),
    [
        (result(), "PASS", ""),
        (result(gpu(0), gpu(1, wrong=WRONG)), "PASS", ""),
        (result(gpu(0, wrong=WRONG), gpu(1)), "FAIL", "GPU 0 (00000000-1): result at byte 4096"),
        (
            result(gpu(1), unfinished={"why": "it did not end within 9 s", "step": "GPU 0: open"}), "FAIL",
            "GPU 0: no result: it did not end within 9 s; its last step: GPU 0: open",
        ),
    ],
)  # fmt: skip
def test_one_gpu(judge: Judge, computed: compute.Compute, verdict: str, message: str) -> None:
    found = judge(checks.test_one_gpu_computes_right, {}, computed=computed)
    assert (found.verdict, message in found.message) == (verdict, True), found


@pytest.mark.parametrize(
    ("computed", "smi", "count", "verdict", "message"),
    [
        (result(), SMI, 2, "PASS", ""),
        (result(gpu(0), count=1), SMI, 2, "FAIL", "CUDA on g5.12xlarge: expected 2 GPUs, got 1"),
        (result(gpu(0)), SMI, 2, "FAIL", "GPU 1: no result"),
        (result(gpu(0), gpu(1, uuid="ff-1")), SMI, 2, "FAIL", "GPU 1 (ff-1): nvidia-smi shows no GPU with this UUID"),
        (
            result(gpu(0), gpu(1, capability="8.0")), SMI, 2, "FAIL",
            "compute capability: expected {'facts': '8.6', 'nvidia-smi': '8.6'}, got 8.0",
        ),
        (result(), SMI.replace("8.6\n", "8.9\n"), 2, "FAIL", "'nvidia-smi': '8.9'}, got 8.6"),
        (result(gpu(0), gpu(1, name="NVIDIA T4")), SMI, 2, "FAIL", "expected NVIDIA A10G (nvidia-smi), got NVIDIA T4"),
        (result(gpu(0), gpu(1, memory_mib=22000)), SMI, 2, "FAIL", "23028 MiB less 3 % at most, got 22000 MiB"),
        (result(gpu(0), gpu(1, memory_mib=24000)), SMI, 2, "FAIL", "got 24000 MiB"),
        (result(), SMI.replace("23028", "[N/A]"), 2, "FAIL", "nvidia-smi's memory.total: expected MiB, got '[N/A]'"),
        (
            result(gpu(0), gpu(1, error=NO_DEVICE, uuid="")), SMI, 2, "FAIL",
            "GPU 1 (no UUID): cuInit: cuInit: CUDA_ERROR_NO_DEVICE (100): no GPU",
        ),
    ],
)  # fmt: skip
def test_promised_gpus(
    judge: Judge, computed: compute.Compute, smi: str, count: int, verdict: str, message: str
) -> None:
    found = judge(
        checks.test_cuda_sees_the_promised_gpus, {"nvidia-smi --query-gpu=*": smi}, computed=computed, plan=plan(count)
    )
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_drivers_before_r510_name_no_compute_capability(judge: Judge) -> None:
    table = {
        "*compute_cap*": (2, 'Field "compute_cap" is not a valid field to query.\n'),
        "nvidia-smi --query-gpu=*": SMI.replace(", 8.6\n", "\n"),
    }
    found = judge(checks.test_cuda_sees_the_promised_gpus, table, computed=result(), plan=plan())
    assert found.verdict == "PASS", found


@pytest.mark.parametrize("said", [(9, "no driver"), (0, "")])
def test_cuda_is_not_compared_with_a_silent_nvidia_smi(judge: Judge, said: tuple[int, str]) -> None:
    table = {"nvidia-smi --query-gpu=*": said}
    found = judge(checks.test_cuda_sees_the_promised_gpus, table, computed=result(), plan=plan())
    assert (found.verdict, "nvidia-smi does not answer" in found.message) == ("UNPROVEN", True), found


@pytest.mark.parametrize(
    ("computed", "verdict", "message"),
    [
        (result(), "PASS", ""),
        (result(gpu(0), gpu(1, wrong=WRONG)), "FAIL", "GPU 1 (00000001-1): result at byte 4096"),
        (result(gpu(0), gpu(1, pattern_wrong=WRONG)), "FAIL", "GPU 1 (00000001-1): pattern at byte 4096"),
        (result(gpu(0)), "FAIL", "GPU 1: no result"),
        (
            result(unfinished={"why": "it did not end within 9 s", "step": "GPU 1 to GPU 0: copy"}), "FAIL",
            "it did not end within 9 s; its last step: GPU 1 to GPU 0: copy",
        ),
    ],
)  # fmt: skip
def test_every_gpu(judge: Judge, computed: compute.Compute, verdict: str, message: str) -> None:
    found = judge(checks.test_every_gpu_computes_right, {}, computed=computed)
    assert (found.verdict, message in found.message) == (verdict, True), found


BAD_COPY = {"index": 1, "error": None, "access": False, "gbps": 9.5, "mib": 64, "wrong": WRONG}


@pytest.mark.parametrize(
    ("computed", "link", "changed", "verdict", "message"),
    [
        (result(), "PHB", {}, "PASS", ""),
        (
            result(),
            "NV12",
            {},
            "FAIL",
            "GPU 0 to GPU 1: they have NVLink, but CUDA has no peer access between them, and 1",
        ),
        (result(), "PHB", {"nvswitch": True}, "FAIL", "CUDA has no peer access between them"),
        (result(gpu(0, peers=[BAD_COPY]), gpu(1)), "PHB", {}, "FAIL", "GPU 0 to GPU 1: copy at byte 4096"),
        (result(gpu(0), count=1), "PHB", {"gpu_count": 1}, "UNPROVEN", "g5.12xlarge has one GPU"),
        (result(gpu(0, wrong=WRONG), gpu(1)), "PHB", {}, "UNPROVEN", "fewer than two GPUs compute right"),
        (result(unfinished={"why": "w", "step": "s"}), "PHB", {}, "UNPROVEN", "test_every_gpu_computes_right"),
        (result(gpu(0, mig="1"), gpu(0, mig="2")), "PHB", {}, "UNPROVEN", "one MIG device to a process"),
    ],
)
def test_copies(
    judge: Judge, computed: compute.Compute, link: str, changed: dict[str, Any], verdict: str, message: str
) -> None:
    table = {"nvidia-smi topo -m": TOPOLOGY.format(link)}
    found = judge(checks.test_gpus_copy_to_each_other, table, computed=computed, plan=plan(**changed))
    assert (found.verdict, message in found.message) == (verdict, True), found


def test_the_probe_is_asked_for_the_mig_devices_of_nvidia_smi() -> None:
    listed = "GPU 0: NVIDIA A100 (UUID: GPU-1)\n  MIG 3g.20gb     Device  0: (UUID: MIG-11-22)\n"
    lines = "".join(json.dumps(row) + "\n" for row in (MACHINE, gpu(0), gpu(1)))
    table = {"nvidia-smi -L": listed, "python3 -IS - *--mig MIG-11-22*": lines}
    assert compute.probe(table_host(table)).count == 2


def test_a_probe_without_a_result_says_what_it_printed() -> None:
    table = {"nvidia-smi -L": (9, "no driver"), "python3 -IS - *": (139, "", "Segmentation fault")}
    with pytest.raises(compute.Unanswered, match="exit status 139: Segmentation fault"):
        compute.probe(table_host(table))
