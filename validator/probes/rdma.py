"""RDMA devices of a machine, and which of them are EFAs. `devices` alone does input or output."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from onhost import readings

# Rows of devices (name, target of the driver's link, provider of GPU memory) and of nodes (name, device), as libibverbs
# finds them.
LIST = (
    "for d in /sys/class/infiniband/*; do"
    ' [ -d "$d" ] && echo "device|${d##*/}|$(readlink "$d/device/driver")|$(cat "$d/device/p2p" 2>/dev/null)"; done;'
    " for u in /sys/class/infiniband_verbs/uverbs*; do"
    ' [ -c "/dev/infiniband/${u##*/}" ] && echo "node|${u##*/}|$(cat "$u/ibdev" 2>/dev/null)|"; done; true'
)


@dataclass(frozen=True)
class Device:
    """name: in /sys/class/infiniband; driver: "efa", "mlx5_core" or ""; node: "uverbs0" or ""; p2p: "NVIDIA" or ""."""

    name: str
    driver: str
    node: str
    p2p: str

    @property
    def is_efa(self) -> bool:
        return readings.is_efa(self.name, self.driver)


def read(printed: str) -> list[Device]:
    """The devices in the output of LIST, by name."""
    rows = [line.split("|", 3) for line in printed.splitlines() if line.count("|") >= 3]
    nodes = {device.strip(): node for kind, node, device, _ in rows if kind == "node"}
    found = [
        Device(name, driver.rpartition("/")[2], nodes.get(name, ""), p2p.strip())
        for kind, name, driver, p2p in rows
        if kind == "device"
    ]
    return sorted(found, key=lambda device: device.name)


def devices(host: Any) -> list[Device]:
    """All RDMA devices, by name."""
    return read(str(host.run(LIST, pure=True).stdout))


def providers(host: Any, names: Sequence[str]) -> dict[str, str]:
    """Device → its provider of GPU memory ("NVIDIA"), "none" without one."""
    paths = [f"/sys/class/infiniband/{name}/device/p2p" for name in names]
    shown = host.run(f"grep -s '' {' '.join(['%s'] * len(paths))} /dev/null", *paths, pure=True).stdout if names else ""
    found = dict(line.split(":", 1) for line in shown.splitlines() if ":" in line)
    return {name: found.get(path, "").strip() or "none" for name, path in zip(names, paths, strict=True)}


def efa_devices(host: Any) -> list[Device]:
    """The devices that are EFAs, by name."""
    return [device for device in devices(host) if device.is_efa]
