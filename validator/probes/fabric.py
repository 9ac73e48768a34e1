"""How far the fabric manager is: since when it runs, and what its log says since then. Does no input or output."""

from __future__ import annotations

import re
from dataclasses import dataclass

UNIT = "nvidia-fabricmanager.service"
LOG = "/var/log/fabricmanager.log"
# Prints the uptime, when the unit became active, and the end of the fabric manager's log.
STATE = (
    f"cut -d. -f1 /proc/uptime && systemctl show -p ActiveEnterTimestampMonotonic --value {UNIT}"
    f" && if [ -r {LOG} ]; then tail -n 200 {LOG}; fi"
)
# GPUs are registered within seconds after the NVSwitches are routed; those of gpu-operator#2781 stayed In Progress.
LIMIT_SECONDS = 60.0
ON_THE_WAY = ("In Progress", "Not Started")
WITH_STATE = ("Hopper", "Blackwell")  # NVML, nvmlDeviceGetGpuFabricInfo: for Hopper or newer
_STARTED = re.compile(r"Fabric Manager version .* is running")
_ROUTED = re.compile(r"Successfully configured all the available .*NVSwitches to route")


@dataclass(frozen=True)
class Manager:
    """seconds: since its unit became active, 0 where it is not. log: its lines since its last start."""

    seconds: float
    log: tuple[str, ...]

    @property
    def is_routed(self) -> bool:
        """Whether the log says that the NVSwitches are configured."""
        return any(_ROUTED.search(line) for line in self.log)

    def __str__(self) -> str:
        return f"active for {self.seconds:.0f} s, the last lines of {LOG}: {' | '.join(self.log[-3:]) or 'none'}"


def read(printed: str) -> Manager:
    """What STATE has printed."""
    uptime, active, *lines = [*printed.splitlines(), "", ""][: max(2, len(printed.splitlines()))]
    since = float(uptime or 0) - int(active) / 1e6 if active.isdigit() and int(active) else 0.0
    starts = [number for number, line in enumerate(lines) if _STARTED.search(line)]
    return Manager(max(0.0, since), tuple(lines[starts[-1] :] if starts else lines))
