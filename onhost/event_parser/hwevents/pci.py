"""PCI addresses as the drivers and the kernel print them."""

from __future__ import annotations

PCI = r"(?:[0-9a-fA-F]{4,8}:)?[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"


def normalise_pci(device: str) -> str:
    """`dddd:bb:dd.f` in lower case: domain 0 and function 0 where none is given. ValueError for anything else.

    An address of two parts is `bb:dd`, or `bbbb:dd` of drivers before R304.
    """
    address, _, function = device.lower().partition(".")
    parts = address.split(":")
    if len(parts) == 2:
        parts = ["0", "%02x" % int(parts[0], 16), parts[1]]
    domain, bus, slot = parts
    return "%04x:%s:%s.%s" % (int(domain, 16), bus, slot, function or "0")
