"""An instance type's devices beside its GPUs: how many NVSwitches, EFA interfaces and Neuron devices a machine has.

The machine's SMBIOS tells (type 11, OEM strings: `gpu-ami:nvswitch=6`); the replicas' kernel modules read it there and
make the device nodes. A sandbox has plain files in their place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from gpu_ami.data import data_dir
from gpu_ami.errors import UsageError

_FACTS = data_dir("variables", "facts", "instance_types.yml")


@dataclass(frozen=True)
class Devices:
    """How many of each kind."""

    gpu: int = 0
    nvswitch: int = 0
    efa: int = 0
    neuron: int = 0

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
        """What SMBIOS says of them; GPUs speak for themselves on the PCI bus."""
        counts = {"nvswitch": self.nvswitch, "efa": self.efa, "neuron": self.neuron}
        return tuple(f"gpu-ami:{kind}={count}" for kind, count in counts.items() if count)


def devices_of(instance_type: str, facts: Path = _FACTS) -> Devices:
    """What the facts promise of an instance type; none of anything where they do not know it."""
    import yaml

    document = yaml.safe_load(facts.read_text(encoding="utf-8")) or {}
    row = document.get("instance_types", {}).get(instance_type)
    if row is None:
        return Devices()
    gpu = row.get("gpu") or {}
    return Devices(
        gpu=int(gpu.get("count", 0)) if gpu.get("vendor", "nvidia") == "nvidia" else 0,
        nvswitch=_nvswitches(document, row),
        efa=int(row.get("efa_interfaces", 0)),
        neuron=int((row.get("neuron") or {}).get("count", 0)),
    )


def _nvswitches(document: Mapping[str, Any], row: Mapping[str, Any]) -> int:
    if not row.get("nvswitch"):
        return 0
    generation = document["families"][row["family"]]["nvswitch_generation"]
    return int(document["nvswitches"][generation]["count"])
