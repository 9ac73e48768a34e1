"""Checks of nccl-tests: green, and red with each message."""

from __future__ import annotations

from typing import Any

import pytest

from tests.validator.checks.conftest import METADATA, PLAN, FakeMachine, Judge
from validator.checks import nccl_tests as checks
from validator.pci import PCI_LIST
from validator.plan import as_plan

(ROW,) = PLAN["instance_types"]
COMMIT = "5db290cddaf595ae18fdd5f46931b3a7f0d6a4d1"
SECTION = {
    "version": "2.18.5",
    "commit": COMMIT,
    "packages": {"libnccl-dev": "2.28.9-1+cuda13.0"},
    "capabilities": ["8.0", "9.0"],
}
STAMP = f"{COMMIT} libnccl-dev=2.28.9-1+cuda13.0 sm_8.0 sm_9.0"
MPI = "/opt/amazon/openmpi/lib/libmpi.so.40 (0x00007f)"
LINKED = f"\tlibnccl.so.2 => /lib/libnccl.so.2 (0x00007f)\n\tlibmpi.so.40 => {MPI}\n"
UNDEFINED = "undefined symbol: ncclCommWindowRegister\t(/opt/nccl-tests/build/all_reduce_perf)\n"
GPU = "0000:00:1e.0 0x10de 0x20b0 0x030200 0x10de 0x1463\n"
SIMULATED = "0000:00:1e.0 0x1af4 0x1110 0x030200 0x10de 0x1463\n"
RANKS = "".join(
    f"#  Rank  {rank} Group  0 Pid   4242 on ip-10-0-0-4 device  {rank} [0x1b] NVIDIA A100\n" for rank in range(2)
)
TABLE = """\
#       size      count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
           8          2     float     sum      -1    29.51    0.00    0.00      0    29.23    0.00    0.00    {wrong}
   134217728   33554432     float     sum      -1   1021.2  131.43  230.01      0   1020.9  131.47  230.07      0
"""


def plan(gpus: int = 2) -> Any:
    return as_plan(PLAN | {"instance_types": [ROW | {"gpu_count": gpus}], "nccl_tests": SECTION})


@pytest.mark.parametrize(
    ("stamp", "missing", "verdict", "message"),
    [
        (STAMP, "", "PASS", ""),
        (STAMP.replace("5db2", "0000"), "", "FAIL", "/opt/nccl-tests/.gpu-ami-build: expected '5db290cd"),
        (STAMP.replace("2.28.9", "2.28.8"), "", "FAIL", "libnccl-dev=2.28.8-1+cuda13.0"),
        (STAMP.removesuffix(" sm_9.0"), "", "FAIL", "sm_8.0 sm_9.0"),
        (STAMP, "alltoall_perf", "FAIL", "/opt/nccl-tests/build: not there, or not executable: alltoall_perf"),
    ],
)
def test_programs(judge: Judge, stamp: str, missing: str, verdict: str, message: str) -> None:
    table: dict[str, Any] = {"cat /opt/nccl-tests/.gpu-ami-build": stamp}
    table["test -x *"] = lambda command: (int(bool(missing) and missing in command), "", "")
    judged = judge(checks.test_programs_are_of_the_planned_commit, table, plan=plan())
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("answer", "verdict", "message"),
    [
        ((0, LINKED, ""), "PASS", ""),
        ((0, LINKED.replace(MPI, "not found"), ""), "FAIL", "libmpi.so.40"),
        ((0, LINKED, UNDEFINED), "FAIL", "ncclCommWindow"),
        ((1, "", "ldd: /opt/nccl-tests/build/all_reduce_perf: No such file or directory"), "FAIL", "No such file"),
    ],
)  # fmt: skip
def test_libraries(judge: Judge, answer: tuple[int, str, str], verdict: str, message: str) -> None:
    judged = judge(checks.test_programs_find_their_libraries, {"env -i * ldd -r *": answer})
    assert (judged.verdict, message in judged.message) == (verdict, True), judged


@pytest.mark.parametrize(
    ("board", "gpus", "answer", "verdict", "message"),
    [
        (GPU, 2, (0, RANKS + TABLE.format(wrong=0), ""), "PASS", ""),
        (GPU, 2, (0, RANKS + TABLE.format(wrong=3), ""), "FAIL", "8 bytes: 3 wrong elements"),
        (GPU, 2, (0, RANKS, ""), "FAIL", "nccl-tests printed no results"),
        (GPU, 4, (0, RANKS + TABLE.format(wrong=0), ""), "FAIL", "ranks: expected 4, got 2"),
        (GPU, 2, (1, RANKS + TABLE.format(wrong=0), "unhandled cuda error"), "FAIL", "status 1: unhandled cuda error"),
        (SIMULATED, 2, (1, "", ""), "UNPROVEN", "the GPUs are simulated"),
        (GPU, 0, (1, "", ""), "UNPROVEN", "has no GPU"),
    ],
)
def test_all_reduce(
    judge: Judge, board: str, gpus: int, answer: tuple[int, str, str], verdict: str, message: str
) -> None:
    table = {PCI_LIST: board, "/opt/nccl-tests/build/all_reduce_perf *": answer}
    judged = judge(
        checks.test_all_reduce_is_right_on_this_machine, table, plan=plan(gpus), machine=FakeMachine(METADATA)
    )
    assert (judged.verdict, message in judged.message) == (verdict, True), judged
