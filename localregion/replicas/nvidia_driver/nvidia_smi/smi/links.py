"""`nvidia-smi nvlink` and `nvidia-smi topo -m`. The number of links follows from a board's model."""

from __future__ import annotations

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
_COUNTERS = ("Replay Errors", "Recovery Errors", "CRC Errors")
_CAPABILITIES = (
    ("P2P is supported", "true"),
    ("Access to system memory supported", "true"),
    ("P2P atomics supported", "true"),
    ("System memory atomics supported", "true"),
    ("SLI is supported", "true"),
    ("Link is supported", "true"),
)


def nvlink(gpus: list[Gpu], what: str) -> str:
    lines = []
    for gpu in gpus:
        lines.append("GPU %d: %s (UUID: %s)" % (gpu.index, gpu.name, gpu.uuid))
        count, speed = gpu.nvlink or (0, "")
        for link in range(count):
            if what == "-s":
                lines.append("\t Link %d: %s GB/s" % (link, speed))
            elif what == "-e":
                lines += ["\t Link %d: %s: 0" % (link, counter) for counter in _COUNTERS]
            else:
                lines += ["\t Link %d, %s: %s" % (link, title, value) for title, value in _CAPABILITIES]
    return "\n".join(lines) + "\n"


def topology(gpus: list[Gpu]) -> str:
    names = ["GPU%d" % gpu.index for gpu in gpus]
    lines = ["\t" + "\t".join(names) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID"]
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
