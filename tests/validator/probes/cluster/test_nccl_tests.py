"""The output of nccl-tests, as good and bad runs print it, and the counters of the network."""

from __future__ import annotations

import pytest

from validator.probes.cluster import mpi_jobs
from validator.probes.cluster.mpi_jobs import Traffic
from validator.probes.cluster.nodes import Floor

# Lines as the sources of NCCL, aws-ofi-nccl and nccl-tests print them, put together: two nodes with a GPU each.
GOOD = """\
# nThread 1 nGpus 1 minBytes 8 maxBytes 1073741824 step: 2(factor) warmup iters: 5 iters: 20 agg iters: 1 validation: 1
#
# Using devices
#  Rank  0 Group  0 Pid   4711 on ip-10-0-0-4 device  0 [0x10] NVIDIA A100-SXM4-40GB
#  Rank  1 Group  0 Pid   4712 on ip-10-0-0-5 device  0 [0x10] NVIDIA A100-SXM4-40GB
ip-10-0-0-4:4711:4711 [0] NCCL INFO NET/OFI Selected Provider is efa (found 4 nics)
ip-10-0-0-4:4711:4780 [0] NCCL INFO Using network AWS Libfabric
ip-10-0-0-4:4711:4780 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/AWS Libfabric/0/GDRDMA
ip-10-0-0-4:4711:4780 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[0] [send] via NET/AWS Libfabric/0/GDRDMA
#
#                                                              out-of-place                       in-place
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
           8             2     float     sum      -1    65.21    0.00    0.00      0    64.44    0.00    0.00      0
  1073741824     268435456     float     sum      -1  41000.0   26.19   39.28      0  40900.0   26.25   39.38      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 19.66
"""
SOCKET = (
    GOOD.replace("NET/OFI Selected Provider is efa (found 4 nics)", "NET/Plugin : No plugin found (libnccl-net.so)")
    .replace("Using network AWS Libfabric", "Using network Socket")
    .replace("via NET/AWS Libfabric/0/GDRDMA", "via NET/Socket/0")
)
FLOOR = Floor(26.0, 2, 1 << 30, "aws-parallelcluster")
MIB = 1 << 20


# nccl-tests before 2.13, each line with mpirun's tag: after a public log of two p4d.24xlarge.
OLD = """\
[1,0]<stdout>:#   Rank  0 Pid     26 on worker-0 device  0 [0x10] A100-SXM4-40GB
[1,0]<stdout>:#   Rank  1 Pid     25 on worker-1 device  0 [0x10] A100-SXM4-40GB
[1,0]<stdout>:#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
[1,0]<stdout>:           8             2   float     sum    167.5    0.00    0.00  2e-07    167.1    0.00    0.00  1e-07
[1,0]<stdout>:  1073741824     268435456   float     sum    61556   17.44   32.71  5e-07    61303   17.52   32.84  5e-07
[1,0]<stdout>:# Out of bounds values : 0 OK
"""


@pytest.mark.parametrize(
    ("log", "defects"),
    [
        (OLD, []),
        (OLD.replace("float     sum", "float        "), []),  # all_gather has no redop
        (OLD.replace(": 0 OK", ": 3 FAILED"), ["8 bytes: 6 wrong elements", "1073741824 bytes: 6 wrong elements"]),
        (
            OLD.replace("# Out of", "# Aut of"),
            [f"{size} bytes: results were not compared (#wrong is no number)" for size in (8, 1 << 30)],
        ),
        (
            OLD.replace("5e-07    61303", "  N/A    61303"),
            ["1073741824 bytes: results were not compared (#wrong is no number)"],
        ),
    ],
)
def test_an_older_layout_is_read(log: str, defects: list[str]) -> None:
    output = mpi_jobs.read(log)
    assert mpi_jobs.result_defects(output, 2, 2) == defects
    assert output.busbw_of_largest == 32.84


def test_a_good_run_has_no_defects() -> None:
    output = mpi_jobs.read(GOOD)
    assert [row.size for row in output.rows] == [8, 1 << 30] and output.busbw_of_largest == 39.38
    assert output.providers == ("efa",) and output.networks == ("AWS Libfabric",)
    assert output.channels == {"NET/AWS Libfabric/0/GDRDMA": 2}
    assert mpi_jobs.result_defects(output, 2, 2) == []
    assert mpi_jobs.transport_defects(output, gpu_direct=True) == []
    assert mpi_jobs.floor_defect(output, FLOOR) == ""


@pytest.mark.parametrize(
    ("log", "defects"),
    [
        (GOOD.replace("39.38      0", "39.38      7"), ["1073741824 bytes: 7 wrong elements"]),
        (GOOD.replace("39.28      0", "39.28      3"), ["1073741824 bytes: 3 wrong elements"]),
        (
            GOOD.replace("39.38      0", "39.38    N/A"),
            ["1073741824 bytes: results were not compared (#wrong is no number)"],
        ),
        (GOOD.replace("#  Rank  1", "#  Rink  1"), ["ranks: expected 2, got 1", "nodes: expected 2, got ip-10-0-0-4"]),
        (GOOD.replace("on ip-10-0-0-5", "on ip-10-0-0-4"), ["nodes: expected 2, got ip-10-0-0-4"]),
        ("", ["nccl-tests printed no results", "ranks: expected 2, got 0", "nodes: expected 2, got none"]),
    ],
)
def test_wrong_and_missing_results(log: str, defects: list[str]) -> None:
    assert mpi_jobs.result_defects(mpi_jobs.read(log), 2, 2) == defects


def test_alltoall_compares_out_of_place_alone() -> None:
    """nccl-tests prints N/A for it in place (src/alltoall.cu, reportErrors), and that is no defect."""
    log = "\n".join(line[:-3] + "N/A" if line.endswith("      0") else line for line in GOOD.splitlines())
    output = mpi_jobs.read(log)
    assert mpi_jobs.result_defects(output, 2, 2, in_place=False) == []
    assert len(mpi_jobs.result_defects(output, 2, 2)) == 2, "of all_reduce it is one"
    red = mpi_jobs.read(log.replace("39.28      0", "39.28      4"))
    assert mpi_jobs.result_defects(red, 2, 2, in_place=False) == ["1073741824 bytes: 4 wrong elements"]


@pytest.mark.parametrize("word", ["nan", "inf", "N/A", "-"])
def test_what_is_no_number_is_not_compared(word: str) -> None:
    output = mpi_jobs.read(GOOD.replace("39.28      0", f"39.28    {word}"))
    expected = ["1073741824 bytes: results were not compared (#wrong is no number)"]
    assert mpi_jobs.result_defects(output, 2, 2) == expected


@pytest.mark.parametrize(
    ("log", "gpu_direct", "defects"),
    [
        (
            SOCKET, True,
            ["aws-ofi-nccl: expected provider efa, got none", "2 channels via NET/Socket/0, expected NET/…Libfabric"],
        ),
        (
            GOOD.replace("is efa", "is tcp;ofi_rxm"), True,
            ["aws-ofi-nccl: expected provider efa, got tcp;ofi_rxm"],
        ),
        (GOOD.replace("/GDRDMA", ""), True, ["2 channels via NET/AWS Libfabric/0 without GDRDMA"]),
        (GOOD.replace("/GDRDMA", ""), False, []),
        (GOOD.replace(" via NET", " through NET"), False, ["NCCL named no channel between nodes (NCCL_DEBUG=INFO)"]),
        ("", False, [
            "aws-ofi-nccl: expected provider efa, got none", "NCCL named no channel between nodes (NCCL_DEBUG=INFO)",
        ]),
    ],
)  # fmt: skip
def test_nccl_that_falls_back(log: str, gpu_direct: bool, defects: list[str]) -> None:
    assert mpi_jobs.transport_defects(mpi_jobs.read(log), gpu_direct=gpu_direct) == defects


@pytest.mark.parametrize("log", [GOOD.replace("39.38", "25.99"), GOOD.replace("39.38", "-"), GOOD[:900], ""])
def test_below_the_floor(log: str) -> None:
    assert "expected at least 26 GB/s at 1073741824 bytes on 2 nodes (aws-parallelcluster), got" in (
        mpi_jobs.floor_defect(mpi_jobs.read(log), FLOOR)
    )


@pytest.mark.parametrize(
    ("node", "defects"),
    [
        (Traffic({"rdmap0": 900 * MIB, "rdmap1": 900 * MIB}, 10 * MIB), []),
        (Traffic({"rdmap0": 1800 * MIB, "rdmap1": 0}, 0), ["n: tx_bytes of rdmap1 did not grow"]),
        (Traffic({}, 1800 * MIB), ["n: no EFA adapter has a counter tx_bytes"]),
        (Traffic({"rdmap0": 800 * MIB}, 0), ["n: EFA sent 800 MiB, expected at least 900 MiB"]),
        (Traffic({"rdmap0": 1000 * MIB}, 100 * MIB), ["n: 9% of the bytes went through ENA, expected below 5 %"]),
    ],
)
def test_traffic(node: Traffic, defects: list[str]) -> None:
    assert mpi_jobs.traffic_defects("n", node, [100 * MIB], 10, 2) == defects


def test_counters_that_stop_or_vanish_have_counted_nothing() -> None:
    before = {"efa rdmap0": 5, "efa rdmap1": 7, "ena ens5": 100, "ena ens6": 1}
    after = {"efa rdmap0": 9, "ena ens5": 130, "ena ens6": 1, "efa rdmap2": 8}
    assert mpi_jobs.traffic(before, after) == Traffic({"rdmap0": 4, "rdmap1": 0}, 30)
