"""PCIe errors as the kernel's AER and DPC services print them (Linux, drivers/pci/pcie). The text of one record in, one fact out.

They are no events of a GPU. The tracker shows those of a GPU or of its port beside the Xid that follows as a likely cause.
"""

from __future__ import annotations

import re
from typing import NamedTuple, Optional, Union

from .pci import PCI, normalise_pci

_SOURCE = r"(?:pcieport|nvidia(?:-\w+)?|vfio-pci|aer|pci) (?P<pci>" + PCI + r"): "
_RECEIVED = re.compile(
    _SOURCE
    + r"(?:AER: )?(?:Multiple )?(?P<severity>Corrected|Correctable|Uncorrect(?:ed|able)(?: \((?:Non-)?Fatal\))?)"
    r" error (?:message )?received(?:(?: from|:) (?P<from>" + PCI + r"))?"
)
_BUS_ERROR = re.compile(
    _SOURCE
    + r"(?:AER: )?PCIe Bus Error: severity=(?P<severity>[A-Z][a-z]+(?: \([A-Za-z -]{1,20}\))?)(?:, type=(?P<type>[A-Za-z ]{1,40}))?"
)
_CONTAINED = re.compile(_SOURCE + r"(?:AER: )?DPC: (?:containment event|unmasked uncorrectable error detected)")
_NO_DRIVER = re.compile(r"nvidia(?:-\w+)? (?P<pci>" + PCI + r"): (?:device has no AER-aware driver|AER: can't recover)")
# The GPU does not answer to a read of its configuration (Linux, drivers/pci/pci.c): its loss mostly follows.
_INACCESSIBLE = re.compile(
    r"nvidia(?:-\w+)? (?P<pci>"
    + PCI
    + r"): (?:Unable to|can't) change power state from \w{1,8} to D0\b.{0,3}(?:device |config space )inaccessible"
)
_BRIDGE = re.compile(
    r"(?:pcieport|pci) (?P<pci>" + PCI + r"): PCI bridge to \[bus (?P<first>[0-9a-f]{2})(?:-(?P<last>[0-9a-f]{2}))?\]"
)


class PcieError(NamedTuple):
    """`port`: the device that reports. `device`: the one that it names as the source, "" for none."""

    port: str
    device: str
    severity: str
    message: str


class Bridge(NamedTuple):
    """The buses below a port: [first, last] of its domain."""

    port: str
    first: int
    last: int


PcieFact = Union[PcieError, Bridge]


def may_hold(raw: bytes) -> bool:
    """A fast test for errors; bridges are printed at boot, and live the kernel's tree says more."""
    return b"AER" in raw or b"PCIe Bus" in raw or b": DPC" in raw or b" change power state from " in raw


def may_hold_bridge(raw: bytes) -> bool:
    return b"PCI bridge to [bus" in raw


def parse_pcie(text: str) -> Optional[PcieFact]:
    """None for most lines, and for the lines that only detail an error."""
    for pattern in (_RECEIVED, _BUS_ERROR, _CONTAINED, _NO_DRIVER, _INACCESSIBLE):
        match = pattern.match(text)
        if match:
            return _error(match, text)
    match = _BRIDGE.match(text)
    if match:
        first = int(match.group("first"), 16)
        return Bridge(normalise_pci(match.group("pci")), first, int(match.group("last") or match.group("first"), 16))
    return None


def _error(match: "re.Match[str]", text: str) -> PcieError:
    fields = match.groupdict()
    source = fields.get("from")
    device = normalise_pci(source) if source else ""
    if device.endswith(":00:00.0") or device == normalise_pci(fields["pci"]):
        device = ""  # the root complex stands for a source that the port does not know
    default = {_CONTAINED: "Uncorrected", _INACCESSIBLE: "device inaccessible"}.get(match.re, "")
    message = re.sub(r"^\S+ \S+: (?:AER: )?", "", text).strip()[:200]
    return PcieError(normalise_pci(fields["pci"]), device, fields.get("severity") or default, message)


def is_below(pci: str, bridge: Bridge) -> bool:
    """Whether a device's bus is one of a port."""
    domain, bus = pci.split(":")[:2]
    return domain == bridge.port.split(":")[0] and bridge.first <= int(bus, 16) <= bridge.last


def same_device(one: str, other: str) -> bool:
    """A GPU's audio or USB function is on the same board."""
    return one.rpartition(".")[0] == other.rpartition(".")[0]
