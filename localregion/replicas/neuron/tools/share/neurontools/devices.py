"""gpu-ami replica: the machine's Neuron devices, from its device nodes, and what its instance type says about them."""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from collections.abc import Callable

_METADATA = "http://169.254.169.254/latest/"
_MEMORY_GIB = 1 << 30
# Family of the instance type → type and version of the device, physical cores a device, cores that make one logical
# core, memory of a device in bytes, columns of the torus that connects them (0: a ring).
_FAMILIES = {
    "inf1": ("inferentia", "v1", "v1", 4, 1, 8 * _MEMORY_GIB, 0),
    "inf2": ("inferentia2", "v3", "v2", 2, 1, 32 * _MEMORY_GIB, 0),
    "trn1": ("trainium", "v2", "v2", 2, 1, 32 * _MEMORY_GIB, 4),
    "trn1n": ("trainium", "v2", "v2", 2, 1, 32 * _MEMORY_GIB, 4),
    "trn2": ("trainium2", "v4", "v3", 8, 2, 96 * _MEMORY_GIB, 4),
    "trn2u": ("trainium2", "v4", "v3", 8, 2, 96 * _MEMORY_GIB, 4),
}


class Machine:
    """A machine below `root`; `ask` answers a path of the instance metadata, "" where there is none."""

    def __init__(self, root: str = "/", ask: Callable[[str], str] | None = None) -> None:
        self.root = root
        self._ask = ask or ask_metadata
        self.instance_type = self._instance_type()
        family = _FAMILIES.get(self.instance_type.partition(".")[0], _FAMILIES["trn1"])
        self.device_type, self.device_version, self.core_version = family[:3]
        self.logical = family[4]
        self.cores = family[3] // self.logical
        self.memory, self.columns = family[5:]

    def _instance_type(self) -> str:
        # On EC2 the firmware's product name is the instance type; elsewhere it is something else.
        named = read(os.path.join(self.root, "sys/devices/virtual/dmi/id/product_name"))
        return named if named.partition(".")[0] in _FAMILIES else self._ask("meta-data/instance-type") or named

    @property
    def instance_id(self) -> str:
        tag = read(os.path.join(self.root, "sys/devices/virtual/dmi/id/board_asset_tag"))
        return tag if tag.startswith("i-") else self._ask("meta-data/instance-id")

    @property
    def region(self) -> str:
        try:
            return str(json.loads(self._ask("dynamic/instance-identity/document") or "{}").get("region", ""))
        except ValueError:
            return ""

    def ask(self, path: str) -> str:
        return self._ask("meta-data/" + path)

    def numbers(self) -> list[int]:
        """Numbers of the device nodes, /dev/neuron<N>."""
        names = os.listdir(os.path.join(self.root, "dev"))
        return sorted(int(name[6:]) for name in names if name.startswith("neuron") and name[6:].isdigit())

    def neighbours(self, number: int) -> list[int] | None:
        """The devices that `number` is connected to; None where it is alone."""
        numbers = self.numbers()
        if len(numbers) < 2:
            return None
        if self.columns and len(numbers) == self.columns * self.columns:
            row, column = divmod(number, self.columns)
            connected = {
                (row - 1) % self.columns * self.columns + column,
                (row + 1) % self.columns * self.columns + column,
                row * self.columns + (column - 1) % self.columns,
                row * self.columns + (column + 1) % self.columns,
            }
        else:
            place = numbers.index(number)
            connected = {numbers[place - 1], numbers[(place + 1) % len(numbers)]}
        return sorted(connected - {number})


def read(path: str) -> str:
    try:
        with open(path) as file:
            return file.read().strip()
    except OSError:
        return ""


def ask_metadata(path: str) -> str:
    """One path of the instance metadata by IMDSv2; "" if it does not answer."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    headers = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    try:
        asked = urllib.request.Request(_METADATA + "api/token", method="PUT", headers=headers)
        token = opener.open(asked, timeout=2).read().decode()
        asked = urllib.request.Request(_METADATA + path, headers={"X-aws-ec2-metadata-token": token})
        return str(opener.open(asked, timeout=2).read().decode().strip())
    except (OSError, urllib.error.URLError):
        return ""
