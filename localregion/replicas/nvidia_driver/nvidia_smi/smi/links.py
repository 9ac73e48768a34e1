"""`nvidia-smi nvlink` and `nvidia-smi topo -m`. The number of links follows from a board's model."""

from __future__ import annotations

from . import settings

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .driver import Gpu

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
# In place of links: H100 and H200 with 590.48.01 in MIG mode, an L40S with 595.80 (captures of nvidia_gpu_exporter).
_IN_MIG_MODE = "Nvlink queries are not supported for Devices in MIG mode"
_WITHOUT = "Device does not have or support Nvlink"
_COUNTERS = (("Replay Errors", "0"), ("Recovery Errors", "0"), ("CRC Errors", "0"))
# NVLink 5, from a p6-b300.48xlarge with driver 595.91.07 (public capture, read 2026-11-27): traffic, corrected code
# words (FEC) and raw values of the lanes are not 0 on a healthy link. Values of Tx and Rx packets are composed.
_NVLINK5_COUNTERS = (
    ("Tx packets", "1204512"), ("Tx bytes", "98304512"), ("Rx packets", "1204498"), ("Rx bytes", "98301120"),
    *((name, "0") for name in (
        "Malformed packet Errors", "Buffer overrun Errors", "Rx Errors", "Rx remote Errors", "Rx General Errors",
        "Local link integrity Errors", "Tx discards", "Link recovery successful events", "Link recovery failed events",
        "Total link recovery events", "Effective Errors",
    )),
    ("Effective BER", "15e-255"), ("Symbol Errors", "0"), ("Symbol BER", "15e-255"),
    ("FEC Errors - 0", "36140749276"), *(("FEC Errors - %d" % bucket, "0") for bucket in range(1, 16)),
)  # fmt: skip
# From R595 on (its nvidia-smi's list of changes).
_RAW_COUNTERS = (
    ("Raw BER Lane 0", "2061"), ("Raw BER Lane 1", "1038"), ("Raw BER Total", "1037"),
    ("Raw Errors Lane 0", "82"), ("Raw Errors Lane 1", "4"),
)  # fmt: skip
_CAPABILITIES = (
    ("P2P is supported", "true"),
    ("Access to system memory supported", "true"),
    ("P2P atomics supported", "true"),
    ("System memory atomics supported", "true"),
    ("SLI is supported", "true"),
    ("Link is supported", "true"),
)


def _counters(gpu: Gpu, branch: int) -> tuple[tuple[str, str], ...]:
    if gpu.values.get("architecture") != "Blackwell":
        return _COUNTERS
    return _NVLINK5_COUNTERS + (_RAW_COUNTERS if branch >= 595 else ())


def nvlink(gpus: list[Gpu], what: str, branch: int) -> str:
    """branch: of the driver, 595."""
    lines = []
    for gpu in gpus:
        lines.append("GPU %d: %s (UUID: %s)" % (gpu.index, gpu.name, gpu.uuid))
        count, speed = gpu.nvlink or (0, "")
        if what == "-s" and (settings.mig_enabled(gpu) or not count):
            lines.append(_IN_MIG_MODE if settings.mig_enabled(gpu) else _WITHOUT)
            continue
        for link in range(count):
            if what == "-s":
                lines.append("\t Link %d: %s GB/s" % (link, speed))
            elif what == "-e":
                lines += ["\t Link %d: %s: %s" % (link, *counter) for counter in _counters(gpu, branch)]
            else:
                lines += ["\t Link %d, %s: %s" % (link, title, value) for title, value in _CAPABILITIES]
    return "\n".join(lines) + "\n"


def topology(gpus: list[Gpu]) -> str:
    names = ["GPU%d" % gpu.index for gpu in gpus]
    # The original underlines the header, on a terminal or not.
    lines = ["\t\x1b[4m" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m"]
    for gpu, name in zip(gpus, names):
        cells = [_connection(gpu, other) for other in gpus]
        lines.append(name + "\t" + "\t".join(cells) + "\t" + gpu.cpu_affinity() + "\t" + gpu.numa_node() + "\t\tN/A")
    return "\n".join(lines) + "\n" + LEGEND


def _connection(gpu: Gpu, other: Gpu) -> str:
    if gpu is other:
        return " X "
    if gpu.nvlink and other.nvlink:
        return "NV%d" % min(gpu.nvlink[0], other.nvlink[0])
    return "PHB" if gpu.numa_node() == other.numa_node() else "SYS"
