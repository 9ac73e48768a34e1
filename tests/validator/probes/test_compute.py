"""What is read of the compute probe's lines, and which of it is a defect."""

from __future__ import annotations

import json
from typing import Any

import pytest

from validator.probes import compute

MACHINE = {
    "kind": "machine", "schema": compute.SCHEMA, "error": None, "unfinished": None, "count": 2, "replica": "",
}  # fmt: skip
NO_DEVICE = {
    "call": "cuInit",
    "number": 100,
    "name": "CUDA_ERROR_NO_DEVICE",
    "meaning": "no GPU",
    "what": "cuInit",
    "log": "",
}
WRONG = {"byte": 4096, "expected": "0x00000001", "got": "0x00000003"}


def gpu(index: int = 0, **changed: Any) -> dict[str, Any]:
    row = {
        "kind": "gpu", "index": index, "error": None, "name": "NVIDIA A10G", "uuid": f"0000000{index}-1", "mig": "",
        "capability": "8.6", "memory_mib": 22731, "free_mib": 22500, "computed_mib": 256, "pattern_mib": 454,
        "h2d_gbps": 12.5, "d2h_gbps": 13.1, "wrong": None, "pattern_wrong": None,
        "peers": [{"index": 1 - index, "error": None, "access": False, "gbps": 9.5, "mib": 64, "wrong": None}],
    }  # fmt: skip
    return row | changed


def read(*rows: dict[str, Any], **machine: Any) -> compute.Compute:
    return compute.read("".join(json.dumps(row) + "\n" for row in (MACHINE | machine, *rows)))


def test_a_machine_whose_gpus_are_right() -> None:
    result = read(gpu(0), gpu(1))
    assert (result.count, result.error, result.unfinished, result.library) == (
        2,
        "",
        "",
        "computed by the driver's libcuda",
    )
    assert [one.right for one in result.gpus] == [True, True]
    assert result.gpus[0].text() == "GPU 0: 256 MiB computed, 454 MiB of patterns, to it 12.5 GB/s, from it 13.1 GB/s"
    assert [compute.defects(one, simulated=False) for one in result.gpus] == [[], []]
    assert compute.copy_defects(result, []) == [] and compute.missing(result) == []


def test_a_simulated_library_is_named() -> None:
    assert read(replica="gpu-ami replica of libcuda 1").library == (
        "computed by a simulated library (gpu-ami replica of libcuda 1)"
    )


def test_an_error_keeps_its_number_and_meaning() -> None:
    assert read(error=NO_DEVICE).error == "cuInit: cuInit: CUDA_ERROR_NO_DEVICE (100): no GPU"
    assert read(unfinished={"why": "it did not end within 9 s", "step": "GPU 1: open"}).unfinished == (
        "it did not end within 9 s; its last step: GPU 1: open"
    )


@pytest.mark.parametrize(
    ("changed", "simulated", "defect"),
    [
        ({"wrong": WRONG}, False, "result at byte 4096: expected 0x00000001, got 0x00000003"),
        ({"pattern_wrong": WRONG}, True, "pattern at byte 4096: expected 0x00000001, got 0x00000003"),
        ({"error": NO_DEVICE}, False, "cuInit: cuInit: CUDA_ERROR_NO_DEVICE (100): no GPU"),
        (
            {"computed_mib": 1, "free_mib": 8}, False,
            "expected 256 MiB of results, got 1: 8 of 22731 MiB are free: other processes use the GPU",
        ),
        ({"computed_mib": 1, "free_mib": 8}, True, ""),
        ({"computed_mib": 1, "free_mib": 8, "mig": "1-2"}, False, ""),
    ],
)  # fmt: skip
def test_defects_of_a_gpu(changed: dict[str, Any], simulated: bool, defect: str) -> None:
    (result,) = read(gpu(0, **changed)).gpus
    found = compute.defects(result, simulated=simulated)
    assert found == ([f"GPU 0 ({changed.get('mig') or '00000000-1'}): {defect}"] if defect else [])


def test_a_gpu_without_a_line_is_missing() -> None:
    assert compute.missing(read(gpu(1))) == ["GPU 0: no result"]


@pytest.mark.parametrize(
    ("peer", "linked", "defect"),
    [
        ({}, [], ""),
        ({"access": True}, [(0, 1)], ""),
        ({}, [(0, 1)], "GPU 0 to GPU 1: they have NVLink, but CUDA has no peer access between them"),
        ({}, [(1, 0)], "GPU 0 to GPU 1: they have NVLink, but CUDA has no peer access between them"),
        ({"wrong": WRONG}, [], "GPU 0 to GPU 1: copy at byte 4096: expected 0x00000001, got 0x00000003"),
        ({"error": NO_DEVICE}, [], "GPU 0 to GPU 1: cuInit: cuInit: CUDA_ERROR_NO_DEVICE (100): no GPU"),
        ({"index": 7}, [], "GPU 0 to GPU 1: no copy was made"),
    ],
)
def test_defects_of_a_copy(peer: dict[str, Any], linked: list[tuple[int, int]], defect: str) -> None:
    first, second = gpu(0), gpu(1)
    second["peers"][0]["access"] = True
    first["peers"][0] |= peer
    assert compute.copy_defects(read(first, second), linked) == ([defect] if defect else [])


def test_copies_of_a_gpu_that_is_wrong_are_not_judged() -> None:
    assert compute.copy_defects(read(gpu(0, wrong=WRONG, peers=[]), gpu(1)), []) == []


@pytest.mark.parametrize(
    "printed",
    ["", "Traceback\n", "{}\n", "[]\n", json.dumps(MACHINE | {"schema": "x"}), json.dumps(MACHINE) + "\n{}\n"],
)
def test_what_is_no_result_is_unanswered(printed: str) -> None:
    with pytest.raises(compute.Unanswered, match=r"printed no result \(.*\); exit status 1: no output"):
        compute.read(printed, "exit status 1: no output")
