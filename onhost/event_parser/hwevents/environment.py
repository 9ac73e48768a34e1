"""What the machine is: boot id, EC2 instance, loaded driver. Read from files, without a network."""

from __future__ import annotations

import os
import re
from typing import Dict, List, Optional


def read_boot_id(path: str = "/proc/sys/kernel/random/boot_id") -> str:
    with open(path, encoding="ascii") as file:
        return file.read().strip()


def read_driver(path: str) -> Optional[str]:
    """The version of the loaded driver; None if none is loaded."""
    try:
        with open(path, encoding="ascii", errors="replace") as file:
            match = re.search(r"Kernel Module\b.*?\s(\d{3}\.\d+(?:\.\d+)?)\s", file.readline())
    except OSError:
        return None
    return match.group(1) if match else None


def read_ports(pci: str, devices: str = "/sys/bus/pci/devices") -> List[str]:
    """The ports above a device, nearest first; empty where the kernel does not list the device (any more)."""
    path = os.path.realpath(os.path.join(devices, pci))
    parts = [part for part in path.split("/") if re.match(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$", part)]
    return parts[-2::-1] if os.path.isdir(path) else []


def read_instance(dmi: str = "/sys/class/dmi/id", cloud: str = "/var/lib/cloud/data") -> Dict[str, str]:
    """Instance id and type without a network: the DMI asset tag (Nitro), else cloud-init's file. Empty outside EC2."""
    instance = {}  # type: Dict[str, str]
    nitro = (_first_line(dmi + "/sys_vendor") or "").startswith("Amazon EC2")
    for path in ([dmi + "/board_asset_tag"] if nitro else []) + [cloud + "/instance-id"]:
        value = _first_line(path)
        if value and value.startswith("i-"):
            instance.setdefault("InstanceId", value[:64])
    instance_type = _first_line(dmi + "/product_name")
    if nitro and instance_type and "." in instance_type:
        instance["InstanceType"] = instance_type[:64]
    return instance


def read_node_name(path: str) -> Optional[str]:
    """The name of this machine's Kubernetes node: of kubelet's flags in the file, the last `--hostname-override`.

    nodeadm writes the file at each boot, and appends the flags of NodeConfig, which take precedence (amazon-eks-ami,
    nodeadm/internal/kubelet/environment.go). None where there is no such file or flag.
    """
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            names = re.findall(r"(?:^|[\s=\"'])--hostname-override[= ]([^\s\"']+)", file.read(65536), re.MULTILINE)
    except OSError:
        return None
    return names[-1][:253] if names else None


def _first_line(path: str) -> Optional[str]:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.readline().strip()
    except OSError:
        return None
