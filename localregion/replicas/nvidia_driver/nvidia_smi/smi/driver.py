"""What the driver shows: /proc/driver/nvidia and /sys/bus/pci."""

from __future__ import annotations

import errno
import os

CUDA_VERSION = {
    "535": "12.2",
    "550": "12.4",
    "555": "12.5",
    "560": "12.6",
    "565": "12.7",
    "570": "12.8",
    "575": "12.9",
    "580": "13.0",
    "590": "13.1",
    "595": "13.2",
    "610": "13.3",
    "615": "13.4",
    "620": "13.5",
}
# First branch of the drivers whose `-q -x` names this DTD (telegraf#15279: 525.147.05; amazon-cloudwatch-agent#2146).
SCHEMAS = ((580, "v13"), (525, "v12"), (0, "v11"))
NO_ENCODER = ("A100", "A30", "H100", "H200", "H20", "B200", "B300", "GB200", "GH200")
# Number of NVLinks and GB/s per link, by a part of the GPU's name (NVIDIA's product briefs).
NVLINK = (
    ("A100-SXM", 12, "25"),
    ("H100 80GB HBM3", 18, "26.562"),
    ("H200", 18, "26.562"),
    ("B200", 18, "53.125"),
    ("B300", 18, "53.125"),
    ("V100-SXM", 6, "25.781"),
)


# Architectures with a fabric state (NVML: nvmlDeviceGetGpuFabricInfo, from Hopper on).
FABRIC = ("Hopper", "Blackwell")
# Boards that are always behind NVSwitches of the fourth generation, which have InfiniBand
# ports: the driver shows none of them.
BEHIND_PORTS = (" B200", " B300")


class Failure(Exception):
    """What nvidia-smi prints instead of an answer, and its exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.message, self.code = message, code


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


class Gpu:
    """One board as the driver describes it; `values` holds the description's lines."""

    def __init__(self, index: int, address: str, values: dict[str, str], root: str) -> None:
        self.index, self.address, self.values, self.root = index, address, values, root
        domain, bus, device = address.split(":")
        # NVML prints the domain with eight digits and hexadecimal in capitals.
        self.bus_id = (domain.zfill(8) + ":" + bus + ":" + device).upper()
        self.name = values["name"]
        self.uuid = values["uuid"]
        self.has_encoder = not any(part in self.name for part in NO_ENCODER)
        # Hopper boards have none, and print zeros (H100 and H200 with the driver 580.159.04).
        self.counts_encoders = self.has_encoder or values.get("architecture") == "Hopper"
        self.nvlink = next(((count, speed) for part, count, speed in NVLINK if part in self.name), None)
        self._sys = root + "/sys/bus/pci/devices/" + address

    def number(self, key: str) -> int | None:
        """An integer of the description; None where the board has none."""
        text = self.values.get(key, "")
        return int(float(text)) if text.replace(".", "", 1).isdigit() else None

    def fabric_state(self) -> str | None:
        """State in the NVLink fabric; None where NVML has none: before Hopper, and without NVSwitches.

        The driver takes it from the fabric manager, and forgets it when it is unloaded. A GB200's is that of its rack.
        """
        if "GB200" in self.name or "GB300" in self.name:
            return "Completed"
        try:
            switches = os.listdir(self.root + "/proc/driver/nvidia-nvswitch/devices")
        except OSError:
            switches = []
        has_switches = bool(switches) or any(part in self.name for part in BEHIND_PORTS)
        if self.values.get("architecture") not in FABRIC or not has_switches:
            return None
        registered = (_read(self.root + "/run/nvidia-fabric/registered") or "").strip()
        return "Completed" if registered == loaded_id(self.root) else "In Progress"

    def cpu_affinity(self) -> str:
        return (_read(self._sys + "/local_cpulist") or "N/A").strip() or "N/A"

    def numa_node(self) -> str:
        return (_read(self._sys + "/numa_node") or "N/A").strip().replace("-1", "N/A")


def loaded_id(root: str) -> str:
    """What is another after the module was loaded again; nv-fabricmanager writes it when it has registered the GPUs."""
    try:
        return str(os.stat(root + "/sys/module/nvidia").st_ino)
    except OSError:
        return "0"


_WITHOUT_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)


def loaded_version(root: str) -> str:
    """The module's version from /proc/driver/nvidia/version; Failure 9 when no module answers."""
    text = _read(root + "/proc/driver/nvidia/version")
    if text:
        for word in text.partition("\n")[0].split():
            if word[0].isdigit() and word.count(".") in (1, 2):
                return word
    raise Failure(_WITHOUT_DRIVER, 9)


_WITHOUT_LIBRARY = (
    "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system. Please make sure that the NVIDIA Display Driver "
    "is properly installed and present in your system.\n"
    "Please also try adding directory that contains libnvidia-ml.so to your system PATH."
)
_LIBRARY = "libnvidia-ml.so.1"
_FOLDERS = ("/usr/lib64/", "/usr/lib/x86_64-linux-gnu/", "/usr/lib/aarch64-linux-gnu/")


def check_library(root: str) -> None:
    """Failure 12 where the loader finds no NVML. It is not opened: that would be a tenth of every start-up."""
    if not os.path.exists(root + "/etc/ld.so.cache"):  # a folder of a test
        return
    folders = [*_FOLDERS, *(folder + "/" for folder in os.environ.get("LD_LIBRARY_PATH", "").split(":") if folder)]
    if any(os.path.exists(root + folder + _LIBRARY) for folder in folders):
        return
    with open(root + "/etc/ld.so.cache", "rb") as file:
        names = file.read().split(b"\0")
    if not any(os.path.exists(root + os.fsdecode(name)) for name in names if name.endswith(b"/" + _LIBRARY.encode())):
        raise Failure(_WITHOUT_LIBRARY, 12)


def _open_error(root: str, node: str) -> int:
    """errno of opening a device node; 0: it can be opened, or this is a folder of a test, without /dev."""
    if not os.path.isdir(root + "/dev"):
        return 0
    try:
        os.close(os.open(root + "/dev/" + node, os.O_RDWR))
    except OSError as error:
        return error.errno or errno.EIO
    return 0


def _check_access(root: str) -> None:
    """As libnvidia-ml (system.c): who may not open the driver's control node."""
    number = _open_error(root, "nvidiactl")
    if number == errno.EACCES:
        raise Failure("Failed to initialize NVML: Insufficient Permissions", 4)
    if number == errno.EPERM:
        raise Failure("Failed to initialize NVML: Unknown Error", 255)
    if number:
        raise Failure(_WITHOUT_DRIVER, 9)


def check_versions(root: str, own: str) -> str:
    """The module's version. NVML answers only the module of its own version: Failure 18."""
    check_library(root)
    loaded = loaded_version(root)
    _check_access(root)
    if loaded != own:
        library = own.rsplit(".", 1)[0] if own.count(".") == 2 else own
        raise Failure(
            "Failed to initialize NVML: Driver/library version mismatch\nNVML library version: " + library, 18
        )
    return loaded


def branch(version: str) -> int:
    return int(version.partition(".")[0])


def is_of_2026(version: str) -> bool:
    """Whether it prints what came in 2026: 580.173.02 (a GB200) and 595.91.07 do, 580.105.08 and 590.48.01 do not."""
    number = tuple(int(part) for part in version.split(".")[:2])
    return branch(version) >= 595 or (580, 173) <= number < (581, 0)


def schema(version: str) -> str:
    """Name of the layout of `-q -x`."""
    return next(name for first, name in SCHEMAS if branch(version) >= first)


def cuda_version(version: str) -> str:
    return CUDA_VERSION.get(version.partition(".")[0], "N/A")


def gpus(root: str) -> list[Gpu]:
    """The GPUs whose nodes can be opened, in the order of their addresses; Failure 6 when there is none."""
    base = root + "/proc/driver/nvidia/gpus"
    try:
        addresses = sorted(os.listdir(base))
    except OSError:
        addresses = []
    gpus: list[Gpu] = []
    for address in addresses:
        text = _read(base + "/" + address + "/board") or ""
        values = dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)
        if "name" in values and "uuid" in values and not _open_error(root, "nvidia" + values.get("minor", "")):
            gpus.append(Gpu(len(gpus), address, values, root))
    if not gpus:
        raise Failure("No devices were found", 6)
    return gpus


def select(gpus: list[Gpu], selection: str | None) -> list[Gpu]:
    """-i: indices, UUIDs or bus ids, comma separated."""
    if selection is None:
        return gpus
    names = selection.split(",")
    chosen = [gpu for name in names for gpu in gpus if name in (str(gpu.index), gpu.uuid) or _same_bus(name, gpu)]
    if not chosen:
        raise Failure("No devices were found", 6)
    return chosen


def _same_bus(item: str, gpu: Gpu) -> bool:
    return ":" in item and gpu.bus_id.endswith(item.upper().lstrip("0").rjust(len("0000:00:00.0"), "0"))
