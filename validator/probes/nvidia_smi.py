"""Reads the output of `nvidia-smi -q -x` as numbers in CloudWatch's units. Does no input or output.

What is missing, an error or unparsable is no value: it is in `unknown`, never 0 (onhost.readings).
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from xml.etree import ElementTree

from onhost import readings
from validator.measurement import MEASUREMENTS


@dataclass(frozen=True)
class Gpu:
    """One GPU. pci: "0000:00:1b.0"; values: measurement → number (MiB, MHz, W, °C, percent), only what is known.

    processes: "PID NAME (TYPE)" of each process that uses the GPU; compute_mode and mig as in nvidia-smi.
    unknown: path in the XML → text ("" if it is missing) of each value that the board has and nvidia-smi did not give.
    unread: measurements with an error in place of a value. fabric: "Completed", "In Progress", … ("" for a GPU without
    that state); fabric_faults: what is wrong with its place in the NVLink fabric. asked: the recovery that the driver
    asks for ("" for none). fraction: it is a vGPU. layout: of the document, by its DOCTYPE (11, 12, 13; 0 where it
    names none).
    """

    index: int
    name: str
    architecture: str
    uuid: str
    pci: str
    values: Mapping[str, float]
    processes: tuple[str, ...] = ()
    compute_mode: str = "Default"
    mig: str = "N/A"
    fraction: bool = False
    unknown: Mapping[str, str] = field(default_factory=dict)
    unread: frozenset[str] = frozenset()
    fabric: str = ""
    fabric_faults: tuple[str, ...] = ()
    asked: str = ""
    layout: int = 0


@dataclass(frozen=True)
class Listed:
    """A GPU in `nvidia-smi -L`. migs: (profile, UUID) of each of its MIG devices, in their order."""

    index: int
    uuid: str
    migs: tuple[tuple[str, str], ...] = ()


def listed(text: str) -> list[Listed]:
    """The GPUs in the output of `nvidia-smi -L`."""
    gpus: list[Listed] = []
    for line in text.splitlines():
        gpu = re.match(r"GPU (\d+): .+\(UUID: (GPU-\S+)\)", line)
        device = re.match(r"\s+MIG (\S+)\s+Device\s+\d+: \(UUID: (\S+)\)", line)
        if gpu:
            gpus.append(Listed(int(gpu[1]), gpu[2]))
        elif device and gpus:
            gpus[-1] = replace(gpus[-1], migs=(*gpus[-1].migs, (device[1], device[2])))
    return gpus


def read(xml: str) -> list[Gpu]:
    """All GPUs of `nvidia-smi -q -x`, ordered by index. ValueError: the output is not XML."""
    try:
        root = ElementTree.fromstring(xml)
    except ElementTree.ParseError as error:
        raise ValueError(f"nvidia-smi -q -x: expected XML ({error}), got {xml[:200]!r}") from error
    layout = re.search(r'<!DOCTYPE[^>]*"nvsmi_device_v(\d+)\.dtd"', xml[:1000])
    return [_gpu(index, node, int(layout[1]) if layout else 0) for index, node in enumerate(root.findall("gpu"))]


def _gpu(index: int, node: ElementTree.Element, layout: int) -> Gpu:
    values, unread = {}, set()
    for row in MEASUREMENTS:
        answers = [readings.read_number(node.findtext(path)) for path in row.paths]
        known = [answer for answer in answers if answer.state == readings.KNOWN]
        if known:
            values[row.name] = known[0].number()
        elif any(readings.is_error(answer.text) for answer in answers):
            unread.add(row.name)
    fabric = readings.fabric_state(node)
    return Gpu(
        index=index,
        name=_text(node, "product_name"),
        architecture=_text(node, "product_architecture"),
        uuid=_text(node, "uuid"),
        pci=pci_address(node.get("id", "") or _text(node, "pci/pci_bus_id")),
        values=values,
        processes=tuple(_process(process) for process in node.findall("processes/process_info")),
        compute_mode=_text(node, "compute_mode") or "Default",
        mig=_text(node, "mig_mode/current_mig") or "N/A",
        fraction=readings.is_vgpu(node),
        unknown=readings.unknown_values(node),
        unread=frozenset(unread),
        fabric="" if fabric.state == readings.ABSENT or node.find("fabric") is None else fabric.shown(),
        fabric_faults=tuple(readings.fabric_faults(node)),
        asked=readings.recovery_of(node)[0],
        layout=layout,
    )


def _process(node: ElementTree.Element) -> str:
    return f"{_text(node, 'pid')} {_text(node, 'process_name')} ({_text(node, 'type')})"


def _text(node: ElementTree.Element, path: str) -> str:
    return (node.findtext(path) or "").strip()


def pci_address(text: str) -> str:
    """`00000000:00:1E.0`, `0000:00:1e` or `0000:00:1e.0` in the kernel's form: `0000:00:1e.0`; else unchanged."""
    match = re.fullmatch(r"([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text.strip().lower())
    if not match:
        return text.strip()
    domain, bus, device, function = match.groups()
    return f"{int(domain, 16):04x}:{bus}:{device}.{function or 0}"
