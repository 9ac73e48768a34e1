"""The memory beside the tracker's: GPUs that could not be initialised, and PCIe errors that may be an event's cause."""

from __future__ import annotations

from typing import Any, Callable, Dict, List, Optional, Tuple

from .event import Moment
from .pcie import Bridge, PcieError, PcieFact, is_below, same_device

# A GPU that fails is tried again with each nvidia-smi: attempts with less than this between them are one failure.
ATTEMPTS_US = 3600 * 1000000
_BEFORE_US = 60 * 1000000
_UNKNOWN_PORT_US = 10 * 1000000
_BEFORE_RECORDS = 64
_KEPT_ERRORS = 64
_KEPT_BRIDGES = 512
_SHOWN = 4
_WHOSE = {"gpu": "the GPU", "port": "the GPU's port", "unknown": "a port of which the log does not say what is behind it"}


class Attempts:
    """The last failed attempt of each GPU: origin and address → clock."""

    def __init__(self) -> None:
        self.last = {}  # type: Dict[str, Optional[int]]

    def is_first(self, gpu: str, clock_us: Optional[int]) -> bool:
        """Whether this attempt begins a failure; remembers it."""
        known = gpu in self.last
        last = self.last.get(gpu)
        self.last[gpu] = clock_us
        return not known or not near(last, clock_us, ATTEMPTS_US)


class PcieErrors:
    """The last PCIe errors, and which buses are behind which port. `ports_of`: live, the ports above a device."""

    def __init__(self) -> None:
        self.errors = []  # type: List[Tuple[str, Optional[int], int, str, str, str]]
        self.bridges = {}  # type: Dict[str, Tuple[int, int]]
        self.ports_of = None  # type: Optional[Callable[[str], List[str]]]

    def learn(self, moment: Moment, fact: PcieFact) -> None:
        if isinstance(fact, Bridge):
            self.bridges[fact.port] = (fact.first, fact.last)
            while len(self.bridges) > _KEPT_BRIDGES:
                del self.bridges[next(iter(self.bridges))]
            return
        self.errors.append((moment.origin, moment.clock_us, moment.order, fact.port, fact.device, fact.severity))
        del self.errors[:-_KEPT_ERRORS]

    def explain(self, event: Dict[str, Any], moment: Moment) -> None:
        """Adds `pcie_errors` and `likely_cause` where errors of the GPU or its port came just before the event."""
        found = {}  # type: Dict[Tuple[str, str], Dict[str, Any]]
        for origin, clock_us, order, port, device, severity in self.errors if event["pci"] else ():
            relation = self._relation(event["pci"], PcieError(port, device, severity, ""))
            limit = _UNKNOWN_PORT_US if relation == "unknown" else _BEFORE_US
            if not relation or origin != moment.origin or not _before(clock_us, order, moment, limit):
                continue
            error = found.setdefault((port, severity), {"pci": port, "of": relation, "severity": severity, "count": 0})
            error["count"] += 1
            if clock_us is not None and moment.clock_us is not None:
                error["seconds_before"] = round((moment.clock_us - clock_us) / 1e6, 3)
        if found:
            errors = sorted(found.values(), key=lambda error: (list(_WHOSE).index(error["of"]), not _is_uncorrected(error)))
            event["pcie_errors"] = errors[:_SHOWN]
            event["likely_cause"] = _sentence(errors[0], event["pci"])

    def _relation(self, pci: str, error: PcieError) -> str:
        """Whose error it is: "gpu", "port", "unknown", or "" for that of another device."""
        if same_device(pci, error.device or error.port):
            return "gpu"
        if error.device:
            return "port" if self._is_above(pci, error.device) else ""
        if self._is_above(pci, error.port):
            return "port"
        known = error.port in self.bridges or (self.ports_of is not None and self.ports_of(pci))
        return "" if known or error.port.partition(":")[0] != pci.partition(":")[0] else "unknown"

    def _is_above(self, pci: str, port: str) -> bool:
        if self.ports_of is not None:
            ports = self.ports_of(pci)
            if ports:
                return port in ports
        first_last = self.bridges.get(port)
        return first_last is not None and is_below(pci, Bridge(port, *first_last))

    def memory(self) -> List[Any]:
        """What a restart needs, as JSON; bridges are read live."""
        return [list(error) for error in self.errors]

    def remember(self, memory: List[Any]) -> None:
        self.errors = [(error[0], error[1], error[2], error[3], error[4], error[5]) for error in memory]


def _before(clock_us: Optional[int], order: int, moment: Moment, limit_us: int) -> bool:
    if clock_us is None or moment.clock_us is None:
        return 0 <= moment.order - order <= _BEFORE_RECORDS
    return 0 <= moment.clock_us - clock_us <= limit_us


def _is_uncorrected(error: Dict[str, Any]) -> bool:
    return str(error["severity"]).startswith("Uncorrect")


def _sentence(error: Dict[str, Any], gpu: str) -> str:
    of = "%s, %s" % (error["pci"], _WHOSE[error["of"]])
    if error["of"] == "gpu" and not same_device(gpu, error["pci"]):
        of = "%s, the GPU, as %s reports" % (gpu, error["pci"])  # the port prints the error that the GPU sent
    severity = str(error["severity"] or "unknown severity")
    times = "" if error["count"] == 1 else ", %d times" % error["count"]
    when = ", %.1f s before" % error["seconds_before"] if "seconds_before" in error else ", just before"
    return "PCIe error (%s) of %s%s%s" % (severity, of, times, when)


def near(earlier: Optional[int], later: Optional[int], window: int) -> bool:
    """Unknown times count as near: a file without times is read as one incident."""
    return earlier is None or later is None or later - earlier <= window
