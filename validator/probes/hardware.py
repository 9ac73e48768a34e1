"""The hardware of a machine, and how it differs from its instance type: by the plan's facts, then by a golden file.

A golden file (`variables/golden/<instance type>.json`, schema gpu-ami/golden/1) is what `gpu-ami record` recorded on a
machine of that type. One from simulated hardware applies only to simulated hardware. Only `see` and `find_golden` do
input or output.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from validator import plan_document
from validator.observe import unproven
from validator.pci import PCI_LIST
from validator.plan_document import PlanDocument
from validator.probes import nvidia_smi

SCHEMA = "gpu-ami/golden/1"
_ROOT = Path(__file__).resolve().parents[2]
# In a checkout, and in a wheel, which holds the project's data in gpu_ami/_data/ (pyproject.toml).
_FOLDERS = (_ROOT / "variables" / "golden", _ROOT / "gpu_ami" / "_data" / "variables" / "golden")
FOLDER = next((folder for folder in _FOLDERS if folder.is_dir()), _FOLDERS[0])
# Allowed difference of nvidia-smi's memory total from the fact. Drivers before R510 exclude reserved memory: 15109 of
# 15360 MiB on a T4 (1.6 %), 22731 of 23028 on an A10 (1.3 %), 40536 of 40960 on an A100 (1.0 %). Source: public
# outputs of nvidia-smi.
MEMORY_PERCENT = 2.0
# The fabric manager guide: the NVSwitches of HGX A100 and H100 are PCI devices of the host, those of HGX B200 are not.
SWITCHES_ON_PCI = ("Ampere", "Hopper")
# Starts the reason of what a real driver cannot prove on simulated boards.
NO_BOARD = "no NVIDIA GPU on the PCI bus: "
# QEMU's ivshmem: a GPU of the local region, where NVIDIA's own driver finds no device.
_SIMULATED_BOARD = ("1af4", "1110")
DRIVER = "cat /proc/driver/nvidia/version"  # modinfo is not in PATH of an unprivileged user
Run = Callable[[str], tuple[int, str]]  # a command → exit status, standard output


class Unseen(Exception):
    """The hardware cannot be read; the message names the failed command."""


@dataclass(frozen=True)
class PciDevice:
    """One row of /sys/bus/pci: "0000:00:1b.0", "10de", "20b0", "030200", "nvidia" ("" without a driver)."""

    address: str
    vendor: str
    device: str
    kind: str
    driver: str = ""

    @property
    def is_gpu(self) -> bool:
        """Whether it is an NVIDIA display device, bound or not, or a device that the nvidia driver is bound to."""
        return (self.vendor == "10de" and self.kind.startswith("03")) or self.driver in ("nvidia", "nvidia-gpu")

    @property
    def is_nvswitch(self) -> bool:
        return self.vendor == "10de" and self.kind.startswith("0680")

    @property
    def is_efa(self) -> bool:
        return self.vendor == "1d0f" and self.device.startswith("efa")


@dataclass(frozen=True)
class Board:
    """One GPU as nvidia-smi shows it; memory in MiB."""

    pci: str
    name: str
    memory_mib: int


@dataclass(frozen=True)
class Hardware:
    """The hardware of a machine. links: "0-1" (indices of two GPUs) → "NV12", "PHB", … of `nvidia-smi topo -m`."""

    gpus: tuple[Board, ...]
    links: Mapping[str, str]
    nvswitches: tuple[str, ...] = ()
    efa_interfaces: tuple[str, ...] = ()
    simulated: bool = False
    driver: str = ""


@dataclass(frozen=True)
class Golden:
    """The content of a golden file. recorded: date, place, version of gpu-ami, driver."""

    instance_type: str
    hardware: Hardware
    recorded: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        kind = "simulated" if self.hardware.simulated else "real"
        return f"{self.instance_type}.json of {self.recorded.get('when', 'unknown date')} ({kind} hardware)"

    def to_json(self) -> dict[str, object]:
        hardware = self.hardware
        return {
            "schema": SCHEMA,
            "instance_type": self.instance_type,
            "hardware": "simulated" if hardware.simulated else "real",
            "recorded": {**self.recorded, "driver": hardware.driver},
            "gpus": [{"pci": gpu.pci, "name": gpu.name, "memory_mib": gpu.memory_mib} for gpu in hardware.gpus],
            "links": dict(hardware.links),
            "nvswitches": list(hardware.nvswitches),
            "efa_interfaces": list(hardware.efa_interfaces),
        }


def golden(document: Any, name: str) -> Golden:
    """Reads the JSON of a golden file. ValueError names the mistake."""
    try:
        if document["schema"] != SCHEMA:
            raise ValueError(f"{name}: expected schema {SCHEMA!r}, got {document['schema']!r}")
        if document["hardware"] not in ("real", "simulated"):
            raise ValueError(f"{name}: expected hardware 'real' or 'simulated', got {document['hardware']!r}")
        hardware = Hardware(
            gpus=tuple(Board(gpu["pci"], gpu["name"], int(gpu["memory_mib"])) for gpu in document["gpus"]),
            links={str(pair): str(kind) for pair, kind in document["links"].items()},
            nvswitches=tuple(document["nvswitches"]),
            efa_interfaces=tuple(document["efa_interfaces"]),
            simulated=document["hardware"] == "simulated",
            driver=str(document["recorded"]["driver"]),
        )
        return Golden(document["instance_type"], hardware, document["recorded"])
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"{name}: not a golden file ({type(error).__name__}: {error})") from error


def find_golden(instance_type: str, *folders: Path) -> Golden | None:
    """The golden file of an instance type in the first folder that has one (without folders: the folder of gpu-ami).

    None if there is none. ValueError: it cannot be read.
    """
    paths = [folder / f"{instance_type}.json" for folder in folders or (FOLDER,)]
    path = next((path for path in paths if path.is_file()), None)
    if path is None:
        return None
    try:
        recorded = golden(json.loads(path.read_text(encoding="utf-8")), path.name)
    except json.JSONDecodeError as error:
        raise ValueError(f"{path.name}: not JSON ({error})") from error
    if recorded.instance_type != instance_type:
        raise ValueError(f"{path.name}: expected instance_type {instance_type}, got {recorded.instance_type}")
    return recorded


def see(run: Run) -> Hardware:
    """Reads the hardware of a machine. Unseen: nvidia-smi or the PCI bus cannot be read."""
    pci = pci_devices(_output(run, PCI_LIST))
    try:
        gpus = nvidia_smi.read(_output(run, "nvidia-smi -q -x"))
    except ValueError as error:
        raise Unseen(str(error)) from error
    return describe(pci, gpus, _output(run, "nvidia-smi topo -m"), loaded_version(_output(run, DRIVER)))


def require_driver(host: Any) -> str:
    """The text of /proc/driver/nvidia/version. UNPROVEN where no driver is loaded: another check fails for that."""
    __tracebackhide__ = True
    shown = host.run(DRIVER)
    if shown.rc != 0:
        unproven("no NVIDIA driver is loaded: see nvidia_driver::test_every_promised_gpu_is_there")
    return str(shown.stdout)


def without_board(host: Any, module: str) -> str:
    """Why nothing can be proven of this machine's GPUs: they are simulated, and the installed driver is a real one.

    "" where there is a GPU of NVIDIA, no board at all, or a module on disk that drives the simulated boards.
    """
    devices = pci_devices(host.run(PCI_LIST, pure=True).stdout)
    boards = [device for device in devices if (device.vendor, device.device) == _SIMULATED_BOARD]
    if not boards or any(device.vendor == "10de" for device in devices):
        return ""
    # depmod's index: modinfo would unpack the module, 84 MiB on Debian 13.
    aliases = f"^alias pci:.* {module.replace('-', '_')}$"
    shown = host.run("grep -e %s /lib/modules/$(uname -r)/modules.alias", aliases, pure=True)
    if shown.rc != 0 or re.search(r"^alias pci:v00001AF4d00001110", shown.stdout, re.MULTILINE | re.IGNORECASE):
        return ""
    return (
        f"{NO_BOARD}the {len(boards)} boards are simulated ({':'.join(_SIMULATED_BOARD)}), and the "
        f"module {module} is NVIDIA's own, which drives real GPUs alone"
    )


def require_board(host: Any, plan: PlanDocument) -> None:
    """UNPROVEN, with the reason, on a machine whose boards the installed driver cannot drive."""
    __tracebackhide__ = True
    if reason := without_board(host, str(plan_document.section(plan, "nvidia_driver").get("module", "nvidia"))):
        unproven(reason)


def loaded_version(text: str) -> str:
    """The version in /proc/driver/nvidia/version; "" if there is none."""
    match = re.search(r"^NVRM version:.*?\s(\d+\.\d+(?:\.\d+)?)\s", text, re.MULTILINE)
    return match[1] if match else ""


def _output(run: Run, command: str) -> str:
    rc, out = run(command)
    if rc != 0 or not out.strip():
        lines = out.strip().splitlines() or ["no output"]
        raise Unseen(f"`{command.split(';')[0]}` exited with status {rc}: {lines[0]}")
    return out


def describe(pci: Sequence[PciDevice], gpus: Iterable[nvidia_smi.Gpu], topology: str, driver: str = "") -> Hardware:
    """The hardware that PCI bus, `nvidia-smi -q -x` and `nvidia-smi topo -m` show. Unseen: memory is unknown."""
    boards = tuple(_board(gpu) for gpu in gpus)
    return Hardware(
        gpus=boards,
        links=read_topology(topology),
        nvswitches=tuple(device.address for device in pci if device.is_nvswitch),
        efa_interfaces=tuple(device.address for device in pci if device.is_efa),
        simulated=is_simulated(pci),
        driver=driver,
    )


def _board(gpu: nvidia_smi.Gpu) -> Board:
    if "memory_total" not in gpu.values:
        text = gpu.unknown.get("fb_memory_usage/total") or "no value"
        raise Unseen(f"`nvidia-smi -q -x`: memory of GPU {gpu.index} ({gpu.pci}): expected MiB, got {text}")
    return Board(gpu.pci, gpu.name, int(gpu.values["memory_total"]))


def is_simulated(pci: Iterable[PciDevice]) -> bool:
    """Whether a GPU has another vendor than NVIDIA on the PCI bus, or there is no GPU."""
    vendors = {device.vendor for device in pci if device.is_gpu}
    return vendors != {"10de"}


def pci_devices(listed: str) -> list[PciDevice]:
    """The devices in the output of PCI_LIST, ordered by address."""
    rows = [line.split() for line in listed.splitlines()]
    return sorted(
        (
            PciDevice(
                nvidia_smi.pci_address(row[0]), *(word.removeprefix("0x").lower() for word in row[1:4]), *row[4:5]
            )
            for row in rows
            if len(row) >= 4
        ),
        key=lambda device: device.address,
    )


def read_topology(text: str) -> dict[str, str]:
    """The links in `nvidia-smi topo -m`: {"0-1": "NV12"}; "NV12/SYS" if the two directions differ."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)  # the header is underlined, on a terminal or not
    # Columns of GPUs are the first, before those whose cells or names have blanks; a copy may have lost the tabs.
    rows = [line.split() for line in plain.splitlines()]
    head: list[str] = next((row for row in rows if re.fullmatch(r"GPU\d+", "".join(row[:1])) and "X" not in row), [])
    columns = {column: int(cell[3:]) for column, cell in enumerate(head, 1) if re.fullmatch(r"GPU\d+", cell)}
    cells: dict[tuple[int, int], str] = {}
    for row in rows:
        if row and re.fullmatch(r"GPU\d+", row[0]):
            cells |= {(int(row[0][3:]), other): row[column] for column, other in columns.items() if column < len(row)}
    links = {}
    for first, second in itertools.combinations(sorted(columns.values()), 2):
        link, reverse = cells.get((first, second), "?"), cells.get((second, first), "?")
        links[f"{first}-{second}"] = link if link == reverse else f"{link}/{reverse}"
    return links


def model_differences(gpus: Sequence[Board], promised: plan_document.Gpu, recorded: Golden | None) -> list[str]:
    """GPUs that are another model than promised or have other memory (facts: within MEMORY_PERCENT; golden file:
    exactly). promised: `gpu` of the plan."""
    wrong = []
    slack = promised["memory_mib"] * MEMORY_PERCENT / 100
    for board in gpus:
        if board.name != promised["name"]:
            wrong.append(f"GPU {board.pci}: expected {promised['name']}, got {board.name}")
        elif abs(board.memory_mib - promised["memory_mib"]) > slack:
            expected = f"{promised['memory_mib']} MiB within {MEMORY_PERCENT:g} %"
            wrong.append(f"GPU {board.pci}: expected {expected}, got {board.memory_mib} MiB")
    if wrong or recorded is None:
        return wrong
    known = {board.pci: board.memory_mib for board in recorded.hardware.gpus}
    return [
        f"GPU {board.pci}: expected {known[board.pci]} MiB ({recorded.name}), got {board.memory_mib} MiB"
        for board in gpus
        if known.get(board.pci, board.memory_mib) != board.memory_mib
    ]


def address_differences(addresses: Iterable[str], promised: plan_document.Gpu, recorded: Golden | None) -> list[str]:
    """PCI addresses with a missing or an unexpected GPU, by the facts or else by the golden file."""
    if promised.get("pci"):
        expected, by = set(promised["pci"]), "facts"
    elif recorded is not None:
        expected, by = {board.pci for board in recorded.hardware.gpus}, recorded.name
    else:
        return []
    present = set(addresses)
    missing = [f"no GPU at {address} ({by})" for address in sorted(expected - present)]
    return missing + [f"unexpected GPU at {address} ({by})" for address in sorted(present - expected)]


def link_differences(machine: Hardware, promised: plan_document.InstanceType, recorded: Golden | None) -> list[str]:
    """Pairs of GPUs with another link than promised. With NVSwitches every pair has the same number of NVLinks; only a
    golden file has that number and all other links. promised: the plan's instance type."""
    wrong = []
    if promised["nvswitch"]:
        usual = max(machine.links.values(), key=list(machine.links.values()).count, default="")
        for pair, kind in machine.links.items():
            if not re.fullmatch(r"NV\d+", kind):
                wrong.append(f"{_pair(pair, machine)}: expected NVLink ({promised['name']}), got {kind}")
            elif kind != usual:
                wrong.append(f"{_pair(pair, machine)}: expected {usual} as all others, got {kind}")
    if wrong or recorded is None:
        return wrong
    for pair in sorted(machine.links.keys() | recorded.hardware.links.keys()):
        kind, expected = machine.links.get(pair, "no link"), recorded.hardware.links.get(pair, "no link")
        if kind != expected:
            wrong.append(f"{_pair(pair, machine)}: expected {expected} ({recorded.name}), got {kind}")
    return wrong


def _pair(pair: str, machine: Hardware) -> str:
    places = [
        f"{index} ({machine.gpus[int(index)].pci})" for index in pair.split("-") if int(index) < len(machine.gpus)
    ]
    return f"GPUs {' and '.join(places)}" if len(places) == 2 else f"GPUs {pair}"


def applicable(recorded: Golden | None, *, simulated: bool) -> Golden | None:
    """The golden file if it was recorded on this kind of hardware."""
    return recorded if recorded is not None and recorded.hardware.simulated == simulated else None


def same_branch(recorded: Golden | None, driver: str) -> Golden | None:
    """The golden file if it was recorded with this driver branch: the memory total differs between branches."""
    if recorded is None or recorded.hardware.driver.partition(".")[0] != driver.partition(".")[0]:
        return None
    return recorded


def basis(recorded: Golden | None) -> str:
    """What the hardware was compared with, for the report."""
    return f"facts and {recorded.name}" if recorded is not None else "facts only, no golden file applies"
