"""GPUs of an instance type as boards of a machine: PCI addresses, and the file that describes each board.

replicas/README.md, "nvidia", is the contract with the driver replica. The instance tag `gpu-ami:fault` seeds faults:
`missing-gpu-3` (several with commas) omits that board, like a GPU that has fallen off the bus.

Devices of an instance type: numbers of GPUs, NVSwitches, EFA interfaces, Neuron devices and InfiniBand ports.

The machine reports them by SMBIOS (type 11, OEM strings: `gpu-ami:nvswitch=6`), where the replicas' kernel modules read
them and create the device nodes. A sandbox has plain files instead.
"""

from __future__ import annotations

import functools
import re
import uuid
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NotRequired

from gpu_ami.errors import UsageError
from gpu_ami.files import data_dir
from validator.plan_document import Gpu

FAULT_TAG = "gpu-ami:fault"
BOARD_BYTES = 64 * 1024  # BAR2 of the device
_DESCRIPTION_BYTES = 4096
_FACTS = data_dir("variables", "facts", "instance_types.yml")
_ADDRESS = re.compile(r"(?P<domain>[0-9a-f]{4}):(?P<bus>[0-9a-f]{2}):(?P<slot>[01][0-9a-f])\.(?P<function>[0-7])")


class GpuFacts(Gpu):
    """The `gpu` row of an instance type in the facts. vbios: where it is known."""

    count: int
    vbios: NotRequired[str]


@dataclass(frozen=True)
class Board:
    """One GPU: its place on the PCI bus and what its own memory says about it."""

    index: int
    pci: str
    description: Mapping[str, str]

    @property
    def file_name(self) -> str:
        return f"gpu{self.index}.board"

    def encode(self) -> bytes:
        """BAR2's content: the description as `key: value` lines, NUL-padded to 4 KiB, then zeros."""
        text = "".join(f"{key}: {value}\n" for key, value in self.description.items()).encode()
        if len(text) >= _DESCRIPTION_BYTES:
            most = _DESCRIPTION_BYTES - 1
            raise UsageError(f"GPU {self.index}: {len(text)} bytes of description; a board holds {most}")
        return text.ljust(BOARD_BYTES, b"\0")


def load_gpu_facts(instance_type: str, facts: Path = _FACTS) -> GpuFacts | None:
    """The `gpu` row of an instance type; None if the type has no GPU or is not in the facts."""
    gpu: GpuFacts | None = _load(instance_type, facts).get("gpu")
    return gpu


def planned_architecture(instance_type: str, facts: Path = _FACTS) -> str:
    """The architecture of an instance type; "" if it is not in the facts."""
    return str(_load(instance_type, facts).get("architecture", ""))


def _load(instance_type: str, facts: Path) -> Mapping[str, Any]:
    return _document(facts).get("instance_types", {}).get(instance_type) or {}


def _document(facts: Path) -> Mapping[str, Any]:
    found = facts.stat()
    return _read(facts, found.st_mtime_ns, found.st_size)


@functools.lru_cache(maxsize=4)
def _read(facts: Path, _changed: int, _size: int) -> Mapping[str, Any]:
    """The facts as they are at this time, by libyaml where PyYAML has it."""
    import yaml

    return yaml.load(facts.read_text(encoding="utf-8"), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)) or {}


def boards_of(instance_id: str, instance_type: str, facts: Path = _FACTS) -> tuple[Board, ...]:
    """The boards of an instance of that type, ordered by index."""
    gpu = load_gpu_facts(instance_type, facts)
    if gpu is None or gpu.get("vendor", "nvidia") != "nvidia":
        return ()
    addresses = gpu.get("pci") or assumed_addresses(gpu["count"])
    if len(addresses) != gpu["count"]:
        raise UsageError(
            f"{facts}: instance_types.{instance_type}.gpu.pci: {len(addresses)} addresses for {gpu['count']} GPUs",
            hint="give one PCI address a GPU",
        )
    return tuple(Board(index, pci, _describe(instance_id, index, pci, gpu)) for index, pci in enumerate(addresses))


def assumed_addresses(count: int) -> list[str]:
    """PCI addresses for types whose addresses the facts lack: the last slots of bus 0, as on most types."""
    return [f"0000:00:{0x1F - count + index:02x}.0" for index in range(count)]


def _describe(instance_id: str, index: int, pci: str, gpu: GpuFacts) -> dict[str, str]:
    clocks = gpu["max_clock_mhz"]
    identity = uuid.uuid5(uuid.NAMESPACE_OID, f"{instance_id}/gpu{index}")
    values: dict[str, object] = {
        "magic": "gpu-ami-board/1",
        "index": index,
        "minor": index,
        "pci": pci,
        "name": gpu["name"],
        "architecture": gpu["architecture"],
        "compute_capability": gpu["compute_capability"],
        "uuid": f"GPU-{identity}",
        "serial": f"1{identity.int % 10**12:012d}",
        "vbios": gpu.get("vbios", "92.00.00.00.00"),
        "memory_mib": gpu["memory_mib"],
        "power_limit_w": gpu["power_limit_w"],
        "clock_graphics_mhz": clocks["graphics"],
        "clock_sm_mhz": clocks["sm"],
        "clock_memory_mhz": clocks["memory"],
        "clock_video_mhz": clocks["video"],
        "pcie_gen": gpu["pcie_gen"],
        "pcie_width": gpu["pcie_width"],
    }
    if not gpu.get("pci"):
        values["pci_source"] = "assumed, the facts have no address"
    return {key: str(value) for key, value in values.items()}


def without_faulty(boards: Iterable[Board], faults: str) -> tuple[Board, ...]:
    """The boards that are left under an instance's fault tag."""
    missing = {fault.strip() for fault in faults.split(",")}
    return tuple(board for board in boards if f"missing-gpu-{board.index}" not in missing)


def write_boards(folder: Path, boards: Iterable[Board]) -> None:
    """One file a board, and none of boards that are gone."""
    for old in folder.glob("gpu*.board"):
        old.unlink()
    for board in boards:
        (folder / board.file_name).write_bytes(board.encode())


def device_options(boards: Sequence[Board], reserved: Iterable[int]) -> list[str]:
    """QEMU's options that put each board at its address.

    A board on bus 0 sits on the machine's root bus. Other buses hang below root complexes of their own (pxb-pcie), as
    on the real machines, where GPUs are spread over several: a bridge on root bus n has bus n + 1 behind it, the next
    bridge n + 2. `reserved`: slots of bus 0 that are taken.
    """
    places = [(board, _parse(board)) for board in boards]
    on_root = {slot for _, (bus, slot, _) in places if bus == 0}
    if on_root & set(reserved):
        taken = ", ".join(f"{slot:02x}" for slot in sorted(on_root & set(reserved)))
        raise UsageError(f"slot {taken} of bus 00 cannot hold a GPU: the machine's own devices use it")
    free = iter(slot for slot in range(1, 0x1F) if slot not in on_root | set(reserved))
    options: list[str] = []
    for run in _consecutive({bus for _, (bus, _, _) in places if bus}):
        options += _root_complex(run, next(free))
    for board, (bus, slot, function) in places:
        parent = f"bus{bus:02x}" if bus else "pcie.0"
        memory = f"memory-backend-file,id=gpu{board.index},share=on,mem-path={board.file_name},size={BOARD_BYTES}"
        device = f"ivshmem-plain,memdev=gpu{board.index},bus={parent},addr={slot:#x}.{function:#x}"
        options += ["-object", memory, "-device", device]
    return options


def _consecutive(buses: Iterable[int]) -> list[list[int]]:
    runs: list[list[int]] = []
    for bus in sorted(buses):
        if runs and bus == runs[-1][-1] + 1:
            runs[-1].append(bus)
        else:
            runs.append([bus])
    return runs


def _root_complex(buses: Sequence[int], slot: int) -> list[str]:
    """A root complex whose bridges lead to `buses`. The firmware numbers them in the order of their slots."""
    number = buses[0] - 1
    if number == 0:
        raise UsageError("bus 01 cannot hold a GPU: its bridge would be the machine's own root bus")
    options = ["-device", f"pxb-pcie,id=root{number:02x},bus_nr={number},bus=pcie.0,addr={slot:#x}"]
    for index, bus in enumerate(buses):
        options += ["-device", f"i82801b11-bridge,id=bus{bus:02x},bus=root{number:02x},addr={index:#x}"]
    return options


def _parse(board: Board) -> tuple[int, int, int]:
    address = _ADDRESS.fullmatch(board.pci.lower())
    if address is None or address["domain"] != "0000":
        message = f"GPU {board.index}: expected a PCI address of domain 0000, got {board.pci!r}"
        raise UsageError(message, hint="write it as 0000:10:1c.0")
    return int(address["bus"], 16), int(address["slot"], 16), int(address["function"], 16)


@dataclass(frozen=True)
class Devices:
    """How many of each kind. umad: InfiniBand ports to NVSwitches of the fourth generation (/dev/infiniband/umad*)."""

    gpu: int = 0
    nvswitch: int = 0
    efa: int = 0
    neuron: int = 0
    umad: int = 0

    @staticmethod
    def parse(text: str) -> Devices:
        """From `gpu=4,nvswitch=6`. UsageError: another kind, or no number."""
        counts: dict[str, int] = {}
        known = [field.name for field in fields(Devices)]
        for item in filter(None, text.split(",")):
            kind, _, count = item.partition("=")
            if kind not in known or not count.isdigit():
                raise UsageError(f"--devices: {item!r}", hint=f"write KIND=NUMBER, kinds: {', '.join(known)}")
            counts[kind] = int(count)
        return Devices(**counts)

    def oem_strings(self) -> tuple[str, ...]:
        """The SMBIOS strings; none for GPUs, which are on the PCI bus."""
        counts = {"nvswitch": self.nvswitch, "efa": self.efa, "neuron": self.neuron, "umad": self.umad}
        return tuple(f"gpu-ami:{kind}={count}" for kind, count in counts.items() if count)


def devices_of(instance_type: str, facts: Path = _FACTS) -> Devices:
    """The devices of an instance type in the facts; no devices for an unknown type."""
    document = _document(facts)
    row = document.get("instance_types", {}).get(instance_type)
    if row is None:
        return Devices()
    gpu = row.get("gpu") or {}
    generation = document["families"][row["family"]]["nvswitch_generation"] if row.get("nvswitch") else 0
    switches = document["nvswitches"][generation] if generation else {}
    return Devices(
        gpu=int(gpu.get("count", 0)) if gpu.get("vendor", "nvidia") == "nvidia" else 0,
        nvswitch=int(switches.get("count", 0)),
        efa=int(row.get("efa_interfaces", 0)),
        neuron=int((row.get("neuron") or {}).get("count", 0)),
        umad=int(switches.get("ports", 0)),
    )
