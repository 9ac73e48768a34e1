"""One value that a tool printed: known, one that the board does not have, or unknown. It is never a number by mistake.

nvidia-smi prints NVML's error in place of the value (nvmlErrorString: `GPU is lost`, `Unknown Error`, `Not Found`, …),
in brackets in a table, and exits with 0. A missing, empty or unparsable value is unknown as well. Python 3.7, standard
library alone: the event parser, gpu-ami-diagnose and the checks all read through this module.
"""

from __future__ import annotations

import os
import re

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
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
# `--query-remapped-rows` prints 0 and 1 for pending and failure, the XML No and Yes.
_FLAGS = {
    "yes": True, "true": True, "enabled": True, "active": True, "1": True,
    "no": False, "false": False, "disabled": False, "not active": False, "0": False,
}  # fmt: skip
# Architectures whose GPUs have no row remapper (NVIDIA, GPU memory error management: it begins with Ampere).
_ECC = "ecc_mode/current_ecc"
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
    """Yes or No, True or False, Enabled or Disabled, Active or Not Active, 1 or 0."""
    return _read(printed, lambda text: _FLAGS.get(text.lower()))


def read_word(printed: Optional[str]) -> Reading:
    """A text that is neither an error nor N/A."""
    return _read(printed, lambda text: text)


def is_error(printed: str) -> bool:
    """Whether a tool printed an error in place of a value."""
    text = printed.strip()
    bare = text[1:-1].strip() if text[:1] == "[" and text[-1:] == "]" else text
    return _ERROR.fullmatch(bare) is not None


def row_remapper(architecture: str, virtualization: str = "", ecc: str = "") -> bool:
    """Whether a GPU must show a row remapper: from Ampere on, with ECC memory, and not through a vGPU.

    architecture: "" of drivers up to R470 (public captures with 418.43, 430.26, 460.56). ecc: N/A without ECC memory.
    """
    if read_word(ecc).state == ABSENT or virtualization.upper() == "VGPU":
        return False
    return architecture not in ("",) + _WITHOUT_ROW_REMAPPER


_POWER = ("power_readings/power_draw", "gpu_power_readings/power_draw", "gpu_power_readings/instant_power_draw")
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
    (_POWER, read_number),
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
    "incorrect_configuration": ("none",), "partition_assigned": ("true", "yes"), "gfm_state": ("connected",),
}  # fmt: skip
# Parts of an NVLink domain of several machines, whose GPUs have a clique other than 0: GB200 and GB300 in UltraServers.
_MULTI_NODE = re.compile(r"\bGB[23]00\b")
# Repairs and verdicts of the driver that are `Yes` on a GPU that needs an action (nvidia-smi of R580 to R615, most in
# group ecc_errors; NVML's nvmlDeviceGetRepairStatus, nvmlDeviceGetUnrepairableMemoryFlag): element → (kind of the
# action, what it says). DCGM fails a GPU with unrepairable memory, whatever its counters show (DCGM_FR_FAULTY_MEMORY,
# DCGM_ERROR_ISOLATE: modules/health/DcgmHealthWatch.cpp, dcgm_errors.c of 4.6.0, 2026-07-06).
REPAIRS = {
    "channel_repair_pending": ("schedule_reboot", "the repair of a memory channel is pending"),
    "tpc_repair_pending": ("schedule_reboot", "the repair of a TPC is pending"),
    "unrepairable_memory": ("isolate", "its memory cannot be repaired"),
    "bank_remapper_pending": ("schedule_reboot", "the remapping of a memory bank is pending"),
}

# What nvidia-smi prints as gpu_recovery_action from R565 on, as recovery_asked compares it; numbers of NVML's
# nvmlDeviceGpuRecoveryAction_t.
_RECOVERY = {
    "none": 0, "reset": 1, "gpu reset": 1, "reboot": 2, "node reboot": 2, "drain p2p": 3, "drain and reset": 4,
}  # fmt: skip
# The generation of the port above the GPU: `Unknown Error` in a machine whose virtual PCI bus has no ports (eight
# healthy V100 at 00:04.0 to 00:0B.0, driver 550.127.05).
OF_THE_HOST = "pci/pci_gpu_link_info/pcie_gen/max_host_link_gen"


def unknown_values(gpu: Any) -> dict[str, str]:
    """Path → text of each value of a <gpu> that is unknown: errors anywhere, and what each board has and this lacks.

    gpu: an ElementTree element. What its mode excludes (`excluded_by_mode`) is not required.
    """
    unknown = dict(_errors(gpu, ""))
    required = list(_REQUIRED) + list(_UTILIZATION)
    if row_remapper((gpu.findtext("product_architecture") or "").strip(), ecc=gpu.findtext(_ECC) or ""):
        required += _REMAPPED
    for paths, read in required:
        if any(excluded_by_mode(gpu, path) for path in paths):
            continue
        readings = {path: read(gpu.findtext(path)) for path in paths}
        if paths is _POWER and _measures_no_power(gpu, readings.values()):
            continue
        covered = any(path == found or path.startswith(found + "/") for path in paths for found in unknown)
        if not covered and not any(reading.state == KNOWN for reading in readings.values()):
            shown = next((path for path, reading in readings.items() if reading.text), paths[-1])
            unknown[shown] = readings[shown].text
    return unknown


def _measures_no_power(gpu: Any, draws: Iterable[Reading]) -> bool:
    """Whether a board has no sensor of its power: a display board, without ECC memory (Quadro P400, GTX 1070 Ti)."""
    absent, ecc = [reading for reading in draws if reading.text], gpu.findtext(_ECC)
    if ecc is None or read_word(ecc).state == KNOWN:
        return False
    return bool(absent) and all(reading.state == ABSENT for reading in absent)


def driver_version(document: Any) -> str:
    """The driver's version in a document of nvidia-smi; "" where it has none.

    R610 follows it with `[Deprecated; will be removed in CUDA 14.0. Use KMD Version instead]`.
    """
    for name in ("kmd_version", "driver_version"):
        words = (document.findtext(name) or "").split()
        if words and words[0][:1].isdigit():
            return str(words[0])
    return ""


def mig_enabled(gpu: Any) -> bool:
    """Whether a <gpu> is in MIG mode now."""
    return read_flag(gpu.findtext("mig_mode/current_mig")).is_set()


def is_vgpu(gpu: Any) -> bool:
    """Whether a <gpu> is a part of a board, in the machine that has the part."""
    return (gpu.findtext("gpu_virtualization_mode/virtualization_mode") or "").strip().upper() == "VGPU"


def excluded_by_mode(gpu: Any, path: str) -> bool:
    """Whether a healthy <gpu> prints `N/A` for a value, or for the group that has it, because of its mode.

    MIG: `<remapped_rows>N/A</remapped_rows>`, no utilization, and memory of its MIG devices alone (public captures: an
    A100 with 535.54.03, H100 and H200 with 590.48.01). A vGPU shows its names alone. An error in place of a value is
    unknown in any mode.
    """
    if is_vgpu(gpu):
        return path not in ("product_name", "uuid")
    return mig_enabled(gpu) and path.startswith(_ABSENT_UNDER_MIG)


_ABSENT_UNDER_MIG = ("utilization/", "remapped_rows/", "fb_memory_usage/used", "fb_memory_usage/free")


def mig_errors(gpu: Any) -> list[str]:
    """Uncorrectable errors that the driver counted for a MIG device, which the counters of the GPU may not have."""
    found = []
    for device in gpu.findall("mig_devices/mig_device"):
        for element in device.iter():
            if "uncorrectable" not in element.tag:
                continue
            reading = read_number(element.text)
            if reading.state == KNOWN and reading.number() > 0:
                name = "MIG device %s" % (device.findtext("index") or "?").strip()
                found.append("%s: %s %d" % (name, element.tag, reading.number()))
    return found


def repairs(gpu: Any) -> list[tuple[str, str]]:
    """(kind of the action, what it says) of each repair that a <gpu> waits for, or that is not possible."""
    found = [REPAIRS[part.tag] for part in gpu.iter() if part.tag in REPAIRS and read_flag(part.text).is_set()]
    return list(dict.fromkeys(found))


def recovery_asked(action: Optional[str], reset: Optional[str] = None, drain: Optional[str] = None) -> tuple[str, int]:
    """(what the driver asks for, its number, -1 for a label of a later driver); ("", 0) where it asks for nothing.

    action: gpu_recovery_action. Before R565: the flags reset_required and drain_and_reset_recommended.
    """
    reading = read_word(action)
    if reading.state == KNOWN:
        word = re.sub(r"[\s_]+", " ", reading.text).lower()
        number = _RECOVERY.get(word[: -len(" required")] if word.endswith(" required") else word, -1)
        return (reading.text, number) if number else ("", 0)
    if read_flag(reset).is_set():
        return "Reset", 1
    return ("Drain and Reset", 4) if read_flag(drain).is_set() else ("", 0)


def recovery_of(gpu: Any) -> tuple[str, int]:
    """`recovery_asked` of a <gpu>."""
    flags = [gpu.findtext("gpu_reset_status/" + name) for name in ("reset_required", "drain_and_reset_recommended")]
    return recovery_asked(gpu.findtext("gpu_recovery_action") or gpu.findtext("recovery_action"), *flags)


def _errors(element: Any, path: str) -> Iterator[tuple[str, str]]:
    for child in element:
        name = path + child.tag
        if child.tag in FREE_TEXT or name in ("fabric", OF_THE_HOST):
            continue  # fabric_faults reads the former: `Unknown Error` is an answer of the fabric there
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
    if not faults and _MULTI_NODE.search(gpu.findtext("product_name") or ""):
        clique = next(
            (gpu.findtext("fabric/" + name) for name in _CLIQUES if gpu.find("fabric/" + name) is not None), None
        )
        if read_number(clique).state == KNOWN and read_number(clique).number() == 0:
            faults.append("clique: 0, the GPU is in no partition of the NVLink domain")
    return faults


_CLIQUES = ("cliqueId", "clique_id")

# Counters of `nvidia-smi nvlink -e` that count errors: those of NVLink 2 to 4, and of NVLink 5 (R570 to R595). All
# others are traffic, corrected code words (FEC) or raw values of the lanes, which rise on healthy links.
_LINK_ERRORS = frozenset(
    ("replay errors", "recovery errors", "crc errors", "crc flit errors", "crc data errors", "ecc errors")
    + ("malformed packet errors", "buffer overrun errors", "rx errors", "rx remote errors", "rx general errors")
    + ("local link integrity errors", "tx discards", "effective errors", "symbol errors")
    + ("link recovery successful events", "link recovery failed events", "total link recovery events")
)
# Errors in a bit that are left after correction. NVIDIA's limit for its links (ibdiagnet, --ber_thresh: 10^-12).
_LINK_BER, BER_LIMIT = ("effective ber", "symbol ber"), 1e-12
_LINK_LINE = re.compile(r"^\s*Link (\d+): (?:([A-Za-z][^:]*): )?(\S.*?)\s*$")
_LINK_HEADING = re.compile(r"^GPU (\d+): ")
# In place of its links: `Nvlink queries are not supported for Devices in MIG mode` (H100 and H200 with 590.48.01),
# `Device does not have or support Nvlink` (L40S with 595.80; public captures of nvidia_gpu_exporter).
_NO_LINKS = re.compile(r"not supported for devices in MIG mode|not have or support nvlink", re.IGNORECASE)


class LinkCounter:
    """A line of `nvidia-smi nvlink -e`: GPU and link by index, the counter's name, and what was printed."""

    __slots__ = ("gpu", "link", "name", "text")

    def __init__(self, gpu: int, link: int, name: str, text: str) -> None:
        self.gpu, self.link, self.name, self.text = gpu, link, name, text

    @property
    def value(self) -> Optional[int]:
        """None: not a whole number, as bit error rates and errors."""
        return int(self.text) if self.text.isdigit() else None

    def is_unknown(self) -> bool:
        return is_error(self.text)

    def fault(self) -> str:
        """What a healthy link does not show; "" for a good value, for traffic and for raw values of the lanes."""
        name = self.name.lower()
        if name in _LINK_BER:
            try:
                rate = float(self.text)
            except ValueError:
                return ""
            return "%s: %s, the limit is %g" % (self.name, self.text, BER_LIMIT) if rate > BER_LIMIT else ""
        return "%s: %s" % (self.name, self.text) if name in _LINK_ERRORS and self.value else ""


def link_counters(printed: str) -> list[LinkCounter]:
    """The counters in the output of `nvidia-smi nvlink -e`."""
    gpu, found = None, []  # type: Optional[int], list[LinkCounter]
    for line in printed.splitlines():
        heading, row = _LINK_HEADING.match(line), _LINK_LINE.match(line)
        if heading:
            gpu = int(heading.group(1))
        elif row and row.group(2) and gpu is not None:
            found.append(LinkCounter(gpu, int(row.group(1)), row.group(2).strip(), row.group(3)))
    return found


# GPUs all of whose links lead to NVSwitches: SXM boards. Others leave links unused (V100, bridges between two boards).
_ON_NVSWITCH = re.compile(r"A100-SXM4|H100 80GB HBM3|H200(?! NVL)|B[23]00|GB[23]00")
_ALL_INACTIVE = re.compile(r"all links are inactive", re.IGNORECASE)
_OF_A_MACHINE = 4  # GPUs of a machine with NVSwitches, at least; EC2 has one alone without any (p5.4xlarge)


def inactive_links(*printed: str) -> dict[int, str]:
    """GPU → what is missing, of `nvidia-smi nvlink -s` or `-e`: links that are inactive, or fewer than other GPUs have.

    Links that are inactive on all GPUs alike are a fault where all lead to NVSwitches: a switch is missing. Else they
    are none, and neither is a machine without an active link.
    """
    active, headed, switched = {}, set(), set()  # type: dict[int, set[int]], set[int], set[int]
    inactive = {}  # type: dict[int, set[int]]
    for text in printed:
        gpu = None  # type: Optional[int]
        for line in text.splitlines():
            heading, row = _LINK_HEADING.match(line), _LINK_LINE.match(line)
            if heading:
                gpu = int(heading.group(1))
                headed.add(gpu)
                if _ON_NVSWITCH.search(line):
                    switched.add(gpu)
            elif gpu is not None and _NO_LINKS.search(line):
                headed.discard(gpu)
            elif gpu is not None and _ALL_INACTIVE.search(line):
                inactive.setdefault(gpu, set())
            elif row and gpu is not None:
                down = row.group(3).strip("<>").lower() == "inactive"
                (inactive if down else active).setdefault(gpu, set()).add(int(row.group(1)))
    for gpu, links in inactive.items():
        active.get(gpu, set()).difference_update(links)
    most = max([len(links) for links in active.values()] or [0])
    is_whole = len(headed & switched) >= _OF_A_MACHINE
    faults = {}
    for gpu in sorted(headed):
        count, down = len(active.get(gpu, ())), sorted(inactive.get(gpu, ()))
        of_switch = is_whole and gpu in switched and gpu in inactive
        if count < most or of_switch:
            named = ": inactive %s" % ", ".join(map(str, down)) if down and count else ""
            total = max(most, count + len(down))
            faults[gpu] = "%d of %d NVLinks are active%s" % (count, total, named) if total else "no NVLink is active"
    return faults


def is_efa(name: str, driver: str) -> bool:
    """Whether an RDMA device is an EFA. driver: the target of its link device/driver, "" where there is none.

    P6 instances have ConnectX bridges in the same directory (ibp…, driver mlx5_core), over which the fabric manager
    reaches the NVSwitches: public captures of a p6-b200.48xlarge and a p6-b300.48xlarge. Without the link the name
    decides: rdma-core's rdma_rename calls InfiniBand devices ibp…, RoCE devices rocep…, and EFAs rdmap….
    """
    if not driver.strip():
        return re.match(r"(rdmap|efa_)\d", name) is not None
    return driver.strip().rstrip("/").rpartition("/")[2] == "efa"


def efa_devices(root: str = "") -> list[str]:
    """Names in /sys/class/infiniband of the devices that are EFAs, sorted."""
    folder = os.path.join(root or "/", "sys/class/infiniband")
    found = []
    for name in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        try:
            driver = os.readlink(os.path.join(folder, name, "device/driver"))
        except OSError:
            driver = ""
        if is_efa(name, driver):
            found.append(name)
    return found
