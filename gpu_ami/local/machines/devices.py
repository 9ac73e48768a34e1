"""Devices of an instance type: numbers of GPUs, NVSwitches, EFA interfaces, Neuron devices and InfiniBand ports.

The machine reports them by SMBIOS (type 11, OEM strings: `gpu-ami:nvswitch=6`), where the replicas' kernel modules read
them and create the device nodes. A sandbox has plain files instead.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from pathlib import Path

from gpu_ami.data import data_dir
from gpu_ami.errors import UsageError

_FACTS = data_dir("variables", "facts", "instance_types.yml")


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
    import yaml

    document = yaml.safe_load(facts.read_text(encoding="utf-8")) or {}
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
