"""What a board's sensors show at a time: a smooth function of its UUID and the clock, within the board's limits.

A board of the local region computes nothing; it behaves as under a load that rises and falls over some ten minutes.
"""

from __future__ import annotations

import math
from binascii import crc32

TYPE_CHECKING = False
if TYPE_CHECKING:
    from .driver import Gpu


def _wave(uuid: str, what: str, seconds: float, period: float) -> float:
    """0..1, a slow and a slower sine with phases of this board and quantity."""
    phase = crc32((uuid + what).encode()) / 0xFFFFFFFF * 2 * math.pi
    slow = math.sin(2 * math.pi * seconds / period + phase)
    slower = math.sin(2 * math.pi * seconds / (period * 3.7) + 2 * phase)
    return min(1.0, max(0.0, 0.5 + 0.32 * slow + 0.18 * slower))


class Readings:
    """MiB, %, W, MHz, degrees Celsius; None where the board has no such sensor."""

    def __init__(self, gpu: Gpu, seconds: float) -> None:
        load = _wave(gpu.uuid, "load", seconds, 600)
        # The temperature follows the load with a delay and smaller amplitude.
        warmth = _wave(gpu.uuid, "load", seconds - 40, 600)
        self.utilization_gpu = round(8 + 84 * load)
        self.utilization_memory = round(4 + 56 * load)
        limit = gpu.number("power_limit_w")
        self.power_limit = None if limit is None else float(limit)
        self.power_draw = None if limit is None else round(limit * (0.16 + 0.72 * load), 2)
        self.temperature_gpu = round(31 + 34 * warmth)
        self.temperature_memory = round(34 + 36 * warmth) if not gpu.has_encoder else None
        total = gpu.number("memory_mib")
        self.memory_total = total
        self.memory_reserved: int | None = None
        self.memory_used: int | None = None
        self.memory_free: int | None = None
        if total is not None:
            self.memory_reserved = max(256, total // 64)
            usable = total - self.memory_reserved
            self.memory_used = round(usable * (0.10 + 0.55 * _wave(gpu.uuid, "memory", seconds, 1800)))
            self.memory_free = usable - self.memory_used
        self.clocks = {name: self._clock(gpu.number("clock_" + name + "_mhz"), name, load) for name in CLOCKS}
        self.max_clocks = {name: gpu.number("clock_" + name + "_mhz") for name in CLOCKS}
        self.pcie_gen = gpu.number("pcie_gen")
        self.pcie_width = gpu.number("pcie_width")

    @staticmethod
    def _clock(maximum: int | None, name: str, load: float) -> int | None:
        if maximum is None or name == "memory":  # memory runs at its full clock in P0
            return maximum
        return min(maximum, 15 * round(maximum * (0.55 + 0.45 * load) / 15))


CLOCKS = ("graphics", "sm", "memory", "video")
