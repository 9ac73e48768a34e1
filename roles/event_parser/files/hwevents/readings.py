"""One value that a tool printed: known, one that the board does not have, or unknown. It is never a number by mistake.

nvidia-smi prints NVML's error in place of the value (nvmlErrorString: `GPU is lost`, `Unknown Error`, `Not Found`, …),
in brackets in a table, and exits with 0. A missing, empty or unparsable value is unknown as well. Python 3.7, standard
library alone: the event parser, gpu-ami-diagnose and the checks all read through this module.
"""

from __future__ import annotations

import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from typing import Any, Optional, Union

KNOWN, ABSENT, UNKNOWN = "known", "absent", "unknown"
# The board or its mode does not have it: NVML_ERROR_NOT_SUPPORTED, and fields that NVIDIA has given up.
_ABSENT = re.compile(r"n/a|not supported|not applicable|requested functionality has been deprecated", re.IGNORECASE)
# Texts of nvmlErrorString (nvml.h), and what nvidia-smi's tables print for them.
_ERROR = re.compile(
    r"(gpu is lost|unknown( error)?|err!?|error|failed|timeout|time ?d out|uninitialized|invalid argument|no data"
    r"|(nvml shared library |function |gpu )?not found|gpu requires reset|reset required|driver not loaded"
    r"|insufficient (permissions|size|memory|resources|external power)|memory error|interrupt request issue"
    r"|(driver/library|argument) version mismatch|in use by another client|infoROM is corrupted|corrupted infoROM"
    r"|operating system blocked the request|gpu access blocked by the operating system|unable to determine\b.*)\W*",
    re.IGNORECASE,
)
# A number with at most one unit: `30 C`, `16x`, `565.11 W`, `40960 MiB`, `640 bank(s)`, `0 KB/s`.
_NUMBER = re.compile(r"(-?\d+(?:\.\d+)?)\s?(?:%|x|[A-Za-z]+(?:/s|\(s\))?)?")
_FLAGS = {
    "yes": True, "true": True, "enabled": True, "active": True,
    "no": False, "false": False, "disabled": False, "not active": False,
}  # fmt: skip
# Architectures whose GPUs have no row remapper (NVIDIA, GPU memory error management: it begins with Ampere).
_WITHOUT_ROW_REMAPPER = ("Kepler", "Maxwell", "Pascal", "Volta", "Turing")
# Names of processes may be any text, also `[Not Found]`, which nvidia-smi prints for those of containers.
FREE_TEXT = ("processes", "accounted_processes", "supported_clocks")


class UnknownValue(Exception):
    """A value was used that is not known."""


class Reading:
    """text: as printed, "" where nothing was. state: KNOWN, ABSENT or UNKNOWN. Only a known one has a value."""

    __slots__ = ("_value", "state", "text")

    def __init__(self, text: str, state: str, value: Union[float, bool, str, None] = None) -> None:
        self.text, self.state, self._value = text, state, value

    @property
    def value(self) -> Union[float, bool, str, None]:
        """UnknownValue: the value is absent or unknown."""
        if self.state != KNOWN:
            raise UnknownValue(self.shown())
        return self._value

    def number(self) -> float:
        """UnknownValue: it is not a known number."""
        if self.state != KNOWN or isinstance(self._value, (str, bool)) or self._value is None:
            raise UnknownValue(self.shown())
        return self._value

    def number_or_none(self) -> Optional[float]:
        return self.number() if self.state == KNOWN else None

    def is_set(self) -> bool:
        """Whether a flag is known and set."""
        return self.state == KNOWN and self._value is True

    def shown(self) -> str:
        return self.text or "no value"

    def as_unknown(self) -> Reading:
        """The same where the board has it: an absent value is unknown then."""
        return self if self.state == KNOWN else Reading(self.text, UNKNOWN)

    def __bool__(self) -> bool:
        raise TypeError("a Reading is no truth value: ask for its state, is_set() or number()")

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Reading):
            raise TypeError("a Reading is compared by its value, not with %r" % (other,))
        return (self.text, self.state, self._value) == (other.text, other.state, other._value)

    def __hash__(self) -> int:
        return hash((self.text, self.state))

    def __repr__(self) -> str:
        return "Reading(%r, %s)" % (self.text, self.state)


def _read(printed: Optional[str], parse: Callable[[str], Union[float, bool, str, None]]) -> Reading:
    text = (printed or "").strip()[:120]
    bare = text[1:-1].strip() if text[:1] == "[" and text[-1:] == "]" else text
    if not bare or is_error(bare):
        return Reading(text, UNKNOWN)
    if _ABSENT.fullmatch(bare):
        return Reading(text, ABSENT)
    value = parse(bare)
    return Reading(text, UNKNOWN) if value is None else Reading(text, KNOWN, value)


def read_number(printed: Optional[str]) -> Reading:
    """A number with or without its unit: of XML, of a table, of sysfs. None: it is missing."""
    return _read(printed, _number)


def _number(text: str) -> Optional[float]:
    match = _NUMBER.fullmatch(text)
    return float(match.group(1)) if match else None


def read_flag(printed: Optional[str]) -> Reading:
    """Yes or No, True or False, Enabled or Disabled, Active or Not Active."""
    return _read(printed, lambda text: _FLAGS.get(text.lower()))


def read_word(printed: Optional[str]) -> Reading:
    """A text that is neither an error nor N/A."""
    return _read(printed, lambda text: text)


def is_error(printed: str) -> bool:
    """Whether a tool printed an error in place of a value."""
    text = printed.strip()
    bare = text[1:-1].strip() if text[:1] == "[" and text[-1:] == "]" else text
    return _ERROR.fullmatch(bare) is not None


def row_remapper(architecture: str, virtualization: str = "") -> bool:
    """Whether a GPU has a row remapper that this machine can ask: from Ampere on, and not through a vGPU."""
    return architecture not in _WITHOUT_ROW_REMAPPER and virtualization.upper() != "VGPU"


# What every GPU of a data centre has, passed through to the machine. Of groups, one path is enough.
_REQUIRED = (
    (("product_name",), read_word),
    (("uuid",), read_word),
    (("temperature/gpu_temp",), read_number),
    (("fb_memory_usage/total",), read_number),
    (("fb_memory_usage/used",), read_number),
    (("fb_memory_usage/free",), read_number),
    (("clocks/graphics_clock",), read_number),
    (("clocks/sm_clock",), read_number),
    (("clocks/mem_clock",), read_number),
    (
        ("power_readings/power_draw", "gpu_power_readings/power_draw", "gpu_power_readings/instant_power_draw"),
        read_number,
    ),
)
_UTILIZATION = ((("utilization/gpu_util",), read_number), (("utilization/memory_util",), read_number))
_REMAPPED = (
    (("remapped_rows/remapped_row_pending",), read_flag),
    (("remapped_rows/remapped_row_failure",), read_flag),
)
# Answers of a fabric that works. Others are faults: `In Progress`, `Unhealthy`, `Limited Capacity`, `Degraded`, `True`.
_FABRIC_GOOD = {
    "state": ("completed",), "status": ("success",), "summary": ("healthy",), "bandwidth": ("full",),
    "route_recovery_in_progress": ("false",), "route_unhealthy": ("false",), "access_timeout_recovery": ("false",),
    "incorrect_configuration": ("none",),
}  # fmt: skip


def unknown_values(gpu: Any) -> dict[str, str]:
    """Path → text of each value of a <gpu> that is unknown: errors anywhere, and what each board has and this lacks.

    gpu: an ElementTree element. Utilization is not there with MIG, and few values are through a vGPU.
    """
    unknown = dict(_errors(gpu, ""))
    virtual = (gpu.findtext("gpu_virtualization_mode/virtualization_mode") or "").strip().upper() == "VGPU"
    required = list(_REQUIRED[:2] if virtual else _REQUIRED)
    if not virtual and not read_flag(gpu.findtext("mig_mode/current_mig")).is_set():
        required += _UTILIZATION
    if row_remapper((gpu.findtext("product_architecture") or "").strip(), "VGPU" if virtual else ""):
        required += _REMAPPED
    for paths, read in required:
        readings = {path: read(gpu.findtext(path)) for path in paths}
        covered = any(path == found or path.startswith(found + "/") for path in paths for found in unknown)
        if not covered and not any(reading.state == KNOWN for reading in readings.values()):
            shown = next((path for path, reading in readings.items() if reading.text), paths[-1])
            unknown[shown] = readings[shown].text
    return unknown


def _errors(element: Any, path: str) -> Iterator[tuple[str, str]]:
    for child in element:
        if child.tag in FREE_TEXT:
            continue
        name = path + child.tag
        # What only root may read (power_smoothing of a B200) says nothing of the GPU.
        if child.text and is_error(child.text) and child.text.strip() != "Insufficient Permissions":
            yield name, child.text.strip()
        yield from _errors(child, name + "/")


def shown_unknown(unknown: Mapping[str, str]) -> str:
    """The unknown values in a sentence: `29 values, the first temperature/gpu_temp: GPU is lost`."""
    first, text = next(iter(unknown.items()))
    count = "%d values, the first " % len(unknown) if len(unknown) > 1 else ""
    return "%s%s: %s" % (count, first, text or "no value")


def fabric_state(gpu: Any) -> Reading:
    """`Completed`, `In Progress`, `Not Started`. Absent: no fabric, or a GPU before Hopper (NVML has none)."""
    return read_word(gpu.findtext("fabric/state"))


def fabric_faults(gpu: Any) -> list[str]:
    """What is wrong with a GPU's place in the NVLink fabric; nothing where its state is absent."""
    if fabric_state(gpu).state == ABSENT or gpu.find("fabric") is None:
        return []
    faults = []
    for name, good in _FABRIC_GOOD.items():
        path = "fabric/" + name if name in ("state", "status") else "fabric/health/" + name
        element = gpu.find(path)
        if element is None and name not in ("state", "status"):
            continue  # a driver that does not know it yet
        reading = read_word(None if element is None else element.text)
        if reading.state == ABSENT and name not in ("state", "status"):
            continue
        if reading.state != KNOWN or reading.text.lower() not in good:
            faults.append("%s: %s" % (name, reading.shown()))
    return faults
